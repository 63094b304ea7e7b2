/* What a kernel's library and the execution model have in common: a thread, where it is, and how it asks to wait. */

#pragma once
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

struct uint3 { unsigned x, y, z; };
typedef uint3 dim3;

namespace lab {
enum Place { RUNNING, BARRIER, SHUFFLE, VOTE, SYNCWARP, RETURNED };  // where a thread is, or what it waits at

struct Fiber {  // one CUDA thread
    uint3 thread;
    int warp, lane;
    Place place;
    int line;                 // of what it waits at, or of the last thing it waited at
    unsigned mask;            // the lanes it wants to meet,
    int source;               // the one whose value it wants,
    uint64_t value, result;   // its own value and what it got
    void *stack_pointer;      // where it goes on
};

struct Here { Fiber *running; uint3 block; dim3 block_dim, grid_dim; };
extern __thread Here *here;  // __thread: known to need no initialisation, so that it is read without a call

void barrier(int line);
uint64_t meet(Place kind, unsigned mask, uint64_t value, int source, int line);
[[noreturn]] void fail(int line, const char *format, ...);
struct Span { char *start; size_t bytes; };
Span dynamic_shared();  // of this OS thread
}
