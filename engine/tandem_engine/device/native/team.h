// Threads that compute one thing together.
//
// A kernel is written for a team: every member calls it with the same arguments and takes its
// share. So one parallel region can hold one kernel, or a whole forward pass with a barrier
// wherever a kernel reads what another one wrote.

#pragma once

#include <omp.h>

#include <cstdint>

namespace tandem {

struct Team {
  int member;  // from 0
  int size;

  // All members wait until the last one is here, and then see what the others wrote.
  void meet() const {
#pragma omp barrier
  }
};

// This member's share of `count` things: [begin, end).
struct Share {
  int64_t begin, end;

  Share(Team team, int64_t count)
      : begin(count * team.member / team.size), end(count * (team.member + 1) / team.size) {}
};

// Hands out 0, 1, 2 … to whoever asks: what a member that the machine holds up does not take,
// the others do.
struct alignas(64) Tickets {
  int64_t next = 0;

  int64_t take() { return __atomic_fetch_add(&next, 1, __ATOMIC_RELAXED); }
};

// Below so many operations a parallel region costs more than it saves (it takes 1 to 5 µs).
constexpr int64_t kWorthATeam = 1 << 15;

// Calls work(team) in each member of a team that suits so many operations.
template <class Work>
inline void in_team(int64_t operations, Work&& work) {
  const int64_t useful = 1 + operations / kWorthATeam;
  const int64_t most = omp_get_max_threads();
  const int size = static_cast<int>(useful < most ? useful : most);
  if (size == 1) {
    work(Team{0, 1});
    return;
  }
#pragma omp parallel num_threads(size)
  work(Team{omp_get_thread_num(), omp_get_num_threads()});
}

}  // namespace tandem
