// The steps of keys that a team of warps copies, one after the other across the pieces of its block
// (policy/decode_work.cuh): copies run ahead of what is computed, into later pieces too.
#ifndef TILEWRIGHT_MMA_STEP_QUEUE_CUH_
#define TILEWRIGHT_MMA_STEP_QUEUE_CUH_

#include "core/math.cuh"
#include "core/types.cuh"
#include "mma/step_copy.cuh"
#include "policy/decode_work.cuh"

namespace tilewright {

// A piece, as a warp has entered it.
struct OpenPiece {
  Piece piece;
  KeyBounds bounds;
  int first_key;  // of the team's first step
};

// In shared memory, of one warp. Registers are scarce, and pieces change seldom.
template <class Config>
struct PieceQueue {
  static constexpr int kPieces = 3;  // that may be open: the one that is computed and those behind

  OpenPiece pieces[kPieces];
  PieceWalk<Config> walk;
};

// kTeams teams take the steps of a piece in turn. kAlwaysOne: a piece without keys has one.
template <class Config, class Params, int kTeams, int kTeamThreads, bool kAlwaysOne>
struct StepQueue {
  static constexpr int kStep = Config::kStepKeys;

  PieceQueue<Config>& pieces;
  StepCopy<Config, Params, kStep, kTeamThreads> copy;
  const int team;
  int key = 0, end = 0;  // the step that is copied next begins at `key`, if that is below `end`
  int turn = 0;          // steps of the block so far, modulo kTeams
  int entered = 0;       // pieces
  int left = 0;          // pieces, by those who compute
  bool more = true;      // there may be pieces that have not been entered

  __device__ __forceinline__ StepQueue(PieceQueue<Config>& pieces, int team, const Params& params)
      : pieces(pieces), copy(params, static_cast<int>(threadIdx.x) % kTeamThreads), team(team) {
    const PieceWalk<Config> walk(params);
    if (threadIdx.x % 32 == 0) pieces.walk = walk;
    __syncwarp();
  }

  __device__ __forceinline__ const OpenPiece& At(int piece) const {
    return pieces.pieces[piece % PieceQueue<Config>::kPieces];
  }

  // Whether there is a step to be copied next, which may be that of a later piece.
  __device__ __forceinline__ bool Find() {
    while (key >= end) {
      if (!more || entered - left == PieceQueue<Config>::kPieces) return false;
      PieceWalk<Config> walk = pieces.walk;
      Piece piece;
      more = walk.Next(&piece, copy.params);
      if (!more) return false;
      // Steps are dealt in turn across pieces, so that short ones do not all go to one team. What
      // a piece's result is must not depend on others if pieces have fixed sizes.
      const int first_team = Config::kChunk != 0 ? 0 : turn;
      const int steps = (piece.kv_end - piece.kv_begin + kStep - 1) / kStep;
      const KeyBounds bounds = BoundsOf<Config>(piece, copy.params);
      key = piece.kv_begin + (team - first_team + kTeams) % kTeams * kStep;
      end = kAlwaysOne && steps <= 0 ? piece.kv_begin + 1 : piece.kv_end;
      __syncwarp();
      if (threadIdx.x % 32 == 0) {
        pieces.walk = walk;
        pieces.pieces[entered % PieceQueue<Config>::kPieces] = {piece, bounds, key};
      }
      __syncwarp();
      copy.Enter(piece.problem, bounds);
      copy.LookUp(key);
      turn = steps > 0 ? (first_team + steps) % kTeams : first_team;
      ++entered;
    }
    return true;
  }

  // The step has been copied.
  __device__ __forceinline__ void Advance() {
    key += kTeams * kStep;
    copy.LookUp(key);
  }
};

}  // namespace tilewright

#endif  // TILEWRIGHT_MMA_STEP_QUEUE_CUH_
