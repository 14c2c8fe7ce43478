// A file system in memory that knows what a power cut would leave of it.
//
// File contents become durable by Sync of the file, names by Sync of their directory. A cut keeps
// of everything else whatever the dice say: each changed name on its own is as before or as after,
// and a file that was not synced holds its old contents, the new ones, a part of them, or zeros.
#ifndef TILEWRIGHT_TESTS_SUPPORT_MEMORY_FILE_SYSTEM_H_
#define TILEWRIGHT_TESTS_SUPPORT_MEMORY_FILE_SYSTEM_H_

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "base/file_system.h"

namespace tilewright::testing {

// Not thread-safe. Has one root directory, "/store", which exists and is durable.
class MemoryFileSystem : public FileSystem {
 public:
  static constexpr char kRoot[] = "/store";

  MemoryFileSystem() : root_(NewNode(FileType::kDirectory, 0700)) {}

  void PowerCut(std::mt19937& dice) {
    handles_.clear();
    locks_.clear();
    std::set<Node*> visited;
    Cut(root_.get(), dice, &visited);
  }

  int OpenRoot(const std::string& path, Handle* directory) override {
    if (path != kRoot) return ENOENT;
    return Open(root_, directory);
  }
  int OpenDirectory(Handle parent, const std::string& name, Handle* directory) override {
    std::shared_ptr<Node> node;
    if (const int error = Look(parent, name, &node); error != 0) return error;
    if (node->info.type != FileType::kDirectory) return ENOTDIR;
    return Open(node, directory);
  }
  int OpenFile(Handle directory, const std::string& name, Handle* file) override {
    std::shared_ptr<Node> node;
    if (const int error = Look(directory, name, &node); error != 0) return error;
    return Open(node, file);
  }
  int CreateFile(Handle directory, const std::string& name, uint32_t mode, Handle* file) override {
    std::shared_ptr<Node> parent;
    if (const int error = At(directory, &parent); error != 0) return error;
    if (parent->children.count(name) != 0) return EEXIST;
    const auto node = NewNode(FileType::kRegular, mode);
    parent->children[name] = node;
    return Open(node, file);
  }
  int OpenOrCreateFile(Handle directory, const std::string& name, uint32_t mode,
                       Handle* file) override {
    const int error = OpenFile(directory, name, file);
    return error == ENOENT ? CreateFile(directory, name, mode, file) : error;
  }
  int Close(Handle handle) override { return handles_.erase(handle) == 1 ? 0 : EBADF; }

  int Read(Handle file, char* data, size_t size, size_t* got) override {
    const auto it = handles_.find(file);
    if (it == handles_.end()) return EBADF;
    const std::string& content = it->second.node->content;
    *got = std::min(size, content.size() - std::min(it->second.position, content.size()));
    std::memcpy(data, content.data() + it->second.position, *got);
    it->second.position += *got;
    return 0;
  }
  int ReadAt(Handle file, int64_t offset, char* data, size_t size, size_t* got) override {
    const auto it = handles_.find(file);
    if (it == handles_.end()) return EBADF;
    const std::string& content = it->second.node->content;
    const size_t from = std::min(static_cast<size_t>(offset), content.size());
    *got = std::min(size, content.size() - from);
    std::memcpy(data, content.data() + from, *got);
    return 0;
  }
  int Write(Handle file, const char* data, size_t size, size_t* written) override {
    std::shared_ptr<Node> node;
    if (const int error = At(file, &node); error != 0) return error;
    node->content.append(data, size);
    node->info.mtime_ns = NowNs();
    *written = size;
    return 0;
  }
  int Sync(Handle handle) override {
    std::shared_ptr<Node> node;
    if (const int error = At(handle, &node); error != 0) return error;
    node->durable_content = node->content;
    node->durable_children = node->children;
    return 0;
  }

  int Stat(Handle handle, FileInfo* info) override {
    std::shared_ptr<Node> node;
    if (const int error = At(handle, &node); error != 0) return error;
    *info = InfoOf(*node);
    return 0;
  }
  int StatAt(Handle directory, const std::string& name, FileInfo* info) override {
    std::shared_ptr<Node> node;
    if (const int error = Look(directory, name, &node); error != 0) return error;
    *info = InfoOf(*node);
    return 0;
  }
  int Space(Handle handle, SpaceInfo* info) override {
    if (handles_.count(handle) == 0) return EBADF;
    *info = {.total = int64_t{1} << 30, .free = int64_t{1} << 30, .type = 0};
    return 0;
  }
  int List(Handle directory, std::vector<std::string>* names) override {
    std::shared_ptr<Node> node;
    if (const int error = At(directory, &node); error != 0) return error;
    names->clear();
    for (const auto& [name, child] : node->children) names->push_back(name);
    return 0;
  }

  int MakeRoot(const std::string& path, uint32_t) override {
    return path == kRoot ? EEXIST : EACCES;
  }
  int MakeDirectory(Handle parent, const std::string& name, uint32_t mode) override {
    std::shared_ptr<Node> node;
    if (const int error = At(parent, &node); error != 0) return error;
    if (node->children.count(name) != 0) return EEXIST;
    node->children[name] = NewNode(FileType::kDirectory, mode);
    return 0;
  }
  int Rename(Handle from_directory, const std::string& from, Handle to_directory,
             const std::string& to) override {
    std::shared_ptr<Node> source;
    std::shared_ptr<Node> target;
    std::shared_ptr<Node> moved;
    if (const int error = At(from_directory, &source); error != 0) return error;
    if (const int error = At(to_directory, &target); error != 0) return error;
    if (const int error = Look(from_directory, from, &moved); error != 0) return error;
    source->children.erase(from);
    target->children[to] = moved;
    return 0;
  }
  int Unlink(Handle directory, const std::string& name) override {
    std::shared_ptr<Node> node;
    if (const int error = At(directory, &node); error != 0) return error;
    return node->children.erase(name) == 1 ? 0 : ENOENT;
  }
  int Touch(Handle directory, const std::string& name) override {
    std::shared_ptr<Node> node;
    if (const int error = Look(directory, name, &node); error != 0) return error;
    node->info.mtime_ns = NowNs();
    return 0;
  }

  int TryLock(Handle file, int64_t offset) override {
    if (handles_.count(file) == 0) return EBADF;
    locks_.insert(offset);
    return 0;
  }
  int Unlock(Handle, int64_t offset) override {
    locks_.erase(offset);
    return 0;
  }

  int64_t NowNs() override { return now_ns_ += 1000; }

  // Open handles: a leak where the store holds none.
  size_t open_handles() const { return handles_.size(); }

  // Names of all regular files below a directory of the root, "k/ab/...": for looking at leftovers.
  std::vector<std::string> Files() const {
    std::vector<std::string> files;
    Collect(*root_, "", &files);
    return files;
  }

 private:
  struct Node {
    FileInfo info;
    std::string content;
    std::string durable_content;
    std::map<std::string, std::shared_ptr<Node>> children;
    std::map<std::string, std::shared_ptr<Node>> durable_children;
  };
  struct OpenFileState {
    std::shared_ptr<Node> node;
    size_t position = 0;
  };

  std::shared_ptr<Node> NewNode(FileType type, uint32_t mode) {
    auto node = std::make_shared<Node>();
    node->info.type = type;
    node->info.mode = mode;
    node->info.owner = geteuid();
    node->info.links = 1;
    node->info.inode = ++last_inode_;
    node->info.mtime_ns = NowNs();
    node->info.ctime_ns = node->info.mtime_ns;
    return node;
  }
  static FileInfo InfoOf(const Node& node) {
    FileInfo info = node.info;
    info.size = static_cast<int64_t>(node.content.size());
    info.allocated = (info.size + 4095) / 4096 * 4096;
    return info;
  }
  int Open(const std::shared_ptr<Node>& node, Handle* handle) {
    *handle = ++last_handle_;
    handles_[*handle] = {node, 0};
    return 0;
  }
  int At(Handle handle, std::shared_ptr<Node>* node) const {
    const auto it = handles_.find(handle);
    if (it == handles_.end()) return EBADF;
    *node = it->second.node;
    return 0;
  }
  int Look(Handle directory, const std::string& name, std::shared_ptr<Node>* node) const {
    std::shared_ptr<Node> parent;
    if (const int error = At(directory, &parent); error != 0) return error;
    const auto it = parent->children.find(name);
    if (it == parent->children.end()) return ENOENT;
    *node = it->second;
    return 0;
  }

  static void Cut(Node* node, std::mt19937& dice, std::set<Node*>* visited) {
    if (!visited->insert(node).second) return;
    std::set<std::string> names;
    for (const auto& [name, child] : node->children) names.insert(name);
    for (const auto& [name, child] : node->durable_children) names.insert(name);
    for (const std::string& name : names) {
      const auto durable = node->durable_children.find(name);
      if (dice() % 2 == 0) continue;  // as it was last seen
      if (durable == node->durable_children.end()) {
        node->children.erase(name);
      } else {
        node->children[name] = durable->second;
      }
    }
    if (node->content != node->durable_content) {
      switch (dice() % 4) {
        case 0:
          node->content = node->durable_content;
          break;
        case 1:
          break;
        case 2:
          node->content.resize(dice() % node->content.size());
          break;
        case 3: {
          const size_t from = dice() % node->content.size();
          std::fill(node->content.begin() + static_cast<std::ptrdiff_t>(from), node->content.end(),
                    '\0');
          break;
        }
      }
    }
    node->durable_children = node->children;
    node->durable_content = node->content;
    for (const auto& [name, child] : node->children) Cut(child.get(), dice, visited);
  }

  static void Collect(const Node& node, const std::string& prefix,
                      std::vector<std::string>* files) {
    for (const auto& [name, child] : node.children) {
      const std::string path = prefix.empty() ? name : prefix + "/" + name;
      if (child->info.type == FileType::kDirectory) {
        Collect(*child, path, files);
      } else {
        files->push_back(path);
      }
    }
  }

  int64_t now_ns_ = int64_t{1'700'000'000} * 1'000'000'000;
  uint64_t last_inode_ = 0;
  Handle last_handle_ = 0;
  std::map<Handle, OpenFileState> handles_;
  std::set<int64_t> locks_;
  std::shared_ptr<Node> root_;
};

}  // namespace tilewright::testing

#endif  // TILEWRIGHT_TESTS_SUPPORT_MEMORY_FILE_SYSTEM_H_
