// A map of bounded total cost that forgets what was used longest ago.
#ifndef TILEWRIGHT_BASE_LRU_MAP_H_
#define TILEWRIGHT_BASE_LRU_MAP_H_

#include <cstddef>
#include <cstdint>
#include <list>
#include <utility>

#include "absl/container/flat_hash_map.h"

namespace tilewright {

// Not thread-safe. Costs are whatever the owner counts in: entries (cost 1 each) or bytes.
template <typename Key, typename Value>
class LruMap {
 public:
  // `max_cost` 0: no bound.
  explicit LruMap(int64_t max_cost) : max_cost_(max_cost) {}
  LruMap(const LruMap&) = delete;  // the index holds iterators into the list
  LruMap& operator=(const LruMap&) = delete;

  // The value, now the most recently used, or nullptr. Valid until the next Insert or Erase.
  Value* Find(const Key& key) {
    const auto it = index_.find(key);
    if (it == index_.end()) return nullptr;
    nodes_.splice(nodes_.begin(), nodes_, it->second);
    return &it->second->value;
  }

  // Inserts or replaces. Other values are forgotten, the longest unused first, until the costs fit;
  // the new one stays even where it alone exceeds the bound. Returns how many were forgotten.
  int64_t Insert(const Key& key, Value value, int64_t cost) {
    Erase(key);
    nodes_.push_front(Node{key, std::move(value), cost});
    index_.emplace(key, nodes_.begin());
    cost_ += cost;
    int64_t evicted = 0;
    while (max_cost_ > 0 && cost_ > max_cost_ && nodes_.size() > 1) {
      cost_ -= nodes_.back().cost;
      index_.erase(nodes_.back().key);
      nodes_.pop_back();
      ++evicted;
    }
    return evicted;
  }

  bool Erase(const Key& key) {
    const auto it = index_.find(key);
    if (it == index_.end()) return false;
    cost_ -= it->second->cost;
    nodes_.erase(it->second);
    index_.erase(it);
    return true;
  }

  // Calls visit(key, value) from the most to the least recently used, without using any.
  template <typename Visitor>
  void ForEach(Visitor visit) const {
    for (const Node& node : nodes_) visit(node.key, node.value);
  }

  size_t size() const { return nodes_.size(); }
  int64_t cost() const { return cost_; }

 private:
  struct Node {
    Key key;
    Value value;
    int64_t cost;
  };

  int64_t max_cost_;
  int64_t cost_ = 0;
  std::list<Node> nodes_;  // most recently used first
  absl::flat_hash_map<Key, typename std::list<Node>::iterator> index_;
};

}  // namespace tilewright

#endif  // TILEWRIGHT_BASE_LRU_MAP_H_
