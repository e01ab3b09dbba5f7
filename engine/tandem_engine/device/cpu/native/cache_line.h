// The line of a cache, by which memory goes from core to core: what different threads or processes
// write stands in lines of its own.

#pragma once

#include <cstdint>

namespace tandem {

// Bytes; cache_line.py has the same for Python.
#if defined(__aarch64__)
constexpr int64_t kCacheLine = 128;  // of Kunpeng 920's last level; 64 of the levels before it
#else
constexpr int64_t kCacheLine = 64;
#endif

// What is written often stands so far from the rest: x86 fetches a line's neighbour with it.
constexpr int64_t kApart = 128;
static_assert(kApart % kCacheLine == 0);

}  // namespace tandem
