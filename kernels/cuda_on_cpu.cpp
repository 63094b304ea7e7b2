/* CUDA's execution model on the CPU, compiled once and linked to every kernel's library.

- A CUDA thread is a fiber: a stack of its own, and a switch of 20 instructions to the next one. It runs alone until
  it reaches a barrier or a warp collective, and goes on once all those have come that have to.
- A thread block belongs to one OS thread, shared memory to the OS thread: `thread_local` inside a function is
  static storage, and `extern __shared__ float s[];` stays legal.
- Which ready thread runs next is the schedule's choice, by `pick`. A correct kernel gives the same under every one.
- Shared memory is NaN before each block: what is read before it is written shows.
Stricter than a GPU, which would go on with what is there: a barrier needs every thread of the block, at the same line,
and a warp collective every lane that its mask names; a thread that has returned is missing at both. */

#include <dlfcn.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdarg>
#include <mutex>
#include <string>
#include <thread>
#include <vector>
#ifdef __linux__
#include <link.h>
#endif

#include "cuda_thread.h"
#include "switch.h"

namespace lab {
constexpr size_t STACK = 128 << 10;   // bytes of a thread's stack, its guard page included
constexpr size_t OVERRUN = 4 << 10;   // bytes after dynamic shared memory that have to stay as they are
constexpr uint16_t POISON = 0x7fff;   // NaN as half, repeated NaN as float and double, far out of range as an index
enum Schedule { FORWARD, REVERSE, ODD_FIRST, RANDOM };

struct Launch {  // as in cpu.py
    unsigned grid[3], block[3];
    void (*call)(void **);
    void **values;
    size_t shared_bytes;
    int schedule, workers;
    uint64_t seed;
    int64_t *shuffles, *barriers;  // per block
    int stop;                      // set from outside to end early
    int line;                      // of the error, 0 if none is known
    int64_t failed_block;          // -1: none
    char text[600];
};

__thread Here *here;

void poison(Span memory) {
    if (memory.bytes) memcpy(memory.start, &POISON, 2);
    for (size_t n = 2; n < memory.bytes; n *= 2) memcpy(memory.start + n, memory.start, std::min(n, memory.bytes - n));
}

#ifdef __linux__
int find_static_shared(dl_phdr_info *info, size_t, void *found) {
    const char *start = (const char *)info->dlpi_tls_data, *ours = (const char *)&here;
    for (int i = 0; start && i < info->dlpi_phnum; i++)
        if (info->dlpi_phdr[i].p_type == PT_TLS && start <= ours && ours < start + info->dlpi_phdr[i].p_memsz)
            *(Span *)found = {(char *)start, info->dlpi_phdr[i].p_memsz};
    return 0;
}
#endif

// All shared memory of this OS thread. On Linux that is whatever is thread_local in this library: the shared arrays and
// `here`, and nothing else as long as the C++ library is not linked into it. Elsewhere only the dynamic part is found.
Span all_shared() {
    Span found = dynamic_shared();
#ifdef __linux__
    dl_iterate_phdr(find_static_shared, &found);
#endif
    return found;
}

struct Block : Here {
    Launch &launch;
    std::vector<Fiber> fibers;
    unsigned ready[32], waiting[32];  // per warp, a bit per lane: can run; waits at a warp collective
    unsigned ready_warps;             // a bit per warp that has a ready lane
    int at_barrier, returned, error_line;
    int64_t shuffles, barriers;
    uint64_t random;
    std::string error;
    void *scheduler_stack;
    char *stacks;
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    Span shared, dynamic = dynamic_shared();

    explicit Block(Launch &launch) : Here{nullptr, {}, {}, {}}, launch(launch) {
        const unsigned *n = launch.block, *g = launch.grid;
        block_dim = {n[0], n[1], n[2]}, grid_dim = {g[0], g[1], g[2]};
        fibers.resize(size_t{n[0]} * n[1] * n[2]);
        const int access = PROT_READ | PROT_WRITE;
        stacks = (char *)mmap(nullptr, fibers.size() * STACK, access, MAP_PRIVATE | MAP_ANON | MAP_NORESERVE, -1, 0);
        if (stacks == (char *)MAP_FAILED) stacks = nullptr;
        for (size_t i = 0; stacks && i < fibers.size(); i++) mprotect(stacks + i * STACK, page, PROT_NONE);
        here = this;
        shared = all_shared();
    }
    ~Block() {
        if (stacks) munmap(stacks, fibers.size() * STACK);
        here = nullptr;
    }

    int lanes(int warp) const { return std::min<int>(32, (int)fibers.size() - 32 * warp); }
    int warps() const { return ((int)fibers.size() + 31) / 32; }
    void wake(const Fiber &f) {
        ready[f.warp] |= 1u << f.lane;
        ready_warps |= 1u << f.warp;
    }

    int pick(unsigned set) {
        const unsigned odd = set & 0xaaaaaaaau;
        switch (launch.schedule) {
            case REVERSE: return 31 - __builtin_clz(set);
            case ODD_FIRST: return __builtin_ctz(odd ? odd : set);
            case RANDOM:
                random = random * 6364136223846793005u + 1442695040888963407u;
                for (int skip = (int)((random >> 33) % (unsigned)__builtin_popcount(set)); skip > 0; skip--) set &= set - 1;
        }
        return __builtin_ctz(set);
    }

    std::string name(const Fiber &f) const {
        std::string s = "thread (" + std::to_string(f.thread.x);
        if (block_dim.y * block_dim.z > 1) s += ", " + std::to_string(f.thread.y);
        if (block_dim.z > 1) s += ", " + std::to_string(f.thread.z);
        return s + ")";
    }

    void start(int64_t number);
    void schedule();
    void diagnose();
    void check_overrun();
};

Block &block() { return *static_cast<Block *>(here); }

void set_error(int line, const char *format, ...) {
    char text[500];
    va_list values;
    va_start(values, format);
    vsnprintf(text, sizeof text, format, values);
    va_end(values);
    block().error = text;
    block().error_line = line;
}

void leave() {  // back to the scheduler, until it picks this thread again
    Fiber &f = *here->running;
    lab_switch(&f.stack_pointer, block().scheduler_stack);
}

void fail(int line, const char *format, ...) {  // from a fiber: the block ends, no fiber of it goes on
    char text[400];
    va_list values;
    va_start(values, format);
    vsnprintf(text, sizeof text, format, values);
    va_end(values);
    set_error(line, "%s in %s", text, block().name(*here->running).c_str());
    for (;;) leave();
}

void entry() {
    Block &b = block();
    b.launch.call(b.launch.values);
    here->running->place = RETURNED;
    b.returned++;
    for (;;) leave();
}

void barrier(int line) {
    Block &b = block();
    Fiber &self = *b.running;
    self.place = BARRIER, self.line = line;
    if (++b.at_barrier == (int)b.fibers.size()) {
        const bool same_line = std::all_of(b.fibers.begin(), b.fibers.end(), [&](Fiber &f) { return f.line == line; });
        if (same_line) {
            b.at_barrier = 0, b.barriers++;
            for (Fiber &f : b.fibers) f.place = RUNNING, b.wake(f);
        }
    }
    leave();
}

// The last lane to come hands every lane its result: nobody can read a value that its owner has already replaced.
void exchange(Block &b, Fiber *warp, Place kind, unsigned mask) {
    uint64_t votes = 0;
    for (unsigned rest = mask; rest; rest &= rest - 1) {
        Fiber &f = warp[__builtin_ctz(rest)];
        votes |= f.value << f.lane;
        if (kind == SHUFFLE && !(mask >> f.source & 1))
            fail(f.line, "a shuffle reads lane %d, which its mask 0x%08x does not name,", f.source, mask);
    }
    for (unsigned rest = mask; rest; rest &= rest - 1) {
        Fiber &f = warp[__builtin_ctz(rest)];
        f.result = kind == SHUFFLE ? warp[f.source].value : votes;
        f.place = RUNNING;
        b.wake(f);
    }
    b.waiting[warp->warp] &= ~mask;
    b.shuffles += kind == SHUFFLE;
}

uint64_t meet(Place kind, unsigned mask, uint64_t value, int source, int line) {
    Block &b = block();
    Fiber &self = *b.running, *warp = &b.fibers[32 * (size_t)self.warp];
    if (!(mask >> self.lane & 1)) fail(line, "mask 0x%08x does not name the lane that calls, lane %d,", mask, self.lane);
    self.place = kind, self.mask = mask, self.value = value, self.source = source, self.line = line;
    const unsigned waiting = b.waiting[self.warp] |= 1u << self.lane;
    if ((waiting & mask) == mask) {
        bool all = true;
        for (unsigned rest = mask; rest; rest &= rest - 1) {
            const Fiber &f = warp[__builtin_ctz(rest)];
            all = all && f.place == kind && f.mask == mask;
        }
        if (all) exchange(b, warp, kind, mask);
    }
    leave();
    return self.result;
}

void Block::start(int64_t number) {
    const int64_t n = launch.schedule == REVERSE ? int64_t{grid_dim.x} * grid_dim.y * grid_dim.z - 1 - number : number;
    block = {unsigned(n % grid_dim.x), unsigned(n / grid_dim.x % grid_dim.y), unsigned(n / grid_dim.x / grid_dim.y)};
    at_barrier = returned = error_line = 0, shuffles = barriers = 0, ready_warps = 0;
    error.clear();
    if (!stacks) return set_error(0, "there is no memory for the stacks of %zu threads", fibers.size());
    random = launch.seed * 0x9e3779b97f4a7c15u + (uint64_t)n;
    poison(shared);
    here = this;  // it is among what was just poisoned
    for (int warp = 0; warp < warps(); warp++) ready[warp] = waiting[warp] = 0;
    for (int i = 0; i < (int)fibers.size(); i++) {
        const unsigned x = block_dim.x, y = block_dim.y, u = (unsigned)i;
        Fiber &f = fibers[(size_t)i] = Fiber{{u % x, u / x % y, u / x / y}, i / 32, i % 32, RUNNING, 0, 0, 0, 0, 0, nullptr};
        // Stacks that all began at the same offset of a page would share a few sets of the cache.
        void **top = (void **)(stacks + (size_t)(i + 1) * STACK - (size_t)(i % 29) * 320 - 64);
        void **saved = top - SAVED_WORDS - 2;
        std::fill(saved, top, nullptr);
        saved[ENTRY_WORD] = (void *)entry;
        f.stack_pointer = saved;
        wake(f);
    }
    schedule();
    if (error.empty()) check_overrun();
    launch.shuffles[n] = shuffles, launch.barriers[n] = barriers;
}

void Block::schedule() {
    while (ready_warps && error.empty() && !__atomic_load_n(&launch.stop, __ATOMIC_RELAXED)) {
        const int warp = pick(ready_warps), lane = pick(ready[warp]);
        ready[warp] &= ~(1u << lane);
        if (!ready[warp]) ready_warps &= ~(1u << warp);
        running = &fibers[(size_t)(32 * warp + lane)];
        lab_switch(&scheduler_stack, running->stack_pointer);
        running = nullptr;
    }
    if (error.empty() && !launch.stop && returned < (int)fibers.size()) diagnose();
}

std::string where(const Fiber &f) {
    static const char *const what[] = {"", "__syncthreads()", "a shuffle", "a vote", "__syncwarp()"};
    if (f.place == RETURNED) return "has returned";
    return std::string("waits at ") + what[f.place] + " in line " + std::to_string(f.line);
}

// Nobody can go on. A warp collective is named first: it says which lane is missing.
void Block::diagnose() {
    for (const Fiber &f : fibers) {
        if (f.place == BARRIER || f.place == RETURNED) continue;
        for (int lane = 0; lane < 32; lane++) {
            if (!(f.mask >> lane & 1)) continue;
            const int i = 32 * f.warp + lane;
            const Fiber *other = lane < lanes(f.warp) ? &fibers[(size_t)i] : nullptr;
            if (other && other->place == f.place && other->mask == f.mask) continue;
            const std::string missing = other ? where(*other) : "does not exist";
            const std::string with = other && other->place == f.place ? " with another mask" : "";
            return set_error(f.line, "%s %s and its mask 0x%08x names lane %d of warp %d, which %s%s", name(f).c_str(),
                             where(f).c_str(), f.mask, lane, f.warp, missing.c_str(), with.c_str());
        }
    }
    const auto first = std::find_if(fibers.begin(), fibers.end(), [](Fiber &f) { return f.place == BARRIER; });
    const auto together = [&](const Fiber &f) { return f.place == BARRIER && f.line == first->line; };
    const auto other = std::find_if_not(fibers.begin(), fibers.end(), together);
    const long n = std::count_if(fibers.begin(), fibers.end(), together);
    set_error(first->line, "barrier divergence: %s %s (as do %ld of the block's %zu threads), but %s %s",
              name(*first).c_str(), where(*first).c_str(), n, fibers.size(), name(*other).c_str(), where(*other).c_str());
}

void Block::check_overrun() {
    for (size_t i = launch.shared_bytes; i + 2 <= std::min(launch.shared_bytes + OVERRUN, dynamic.bytes); i += 2)
        if (memcmp(dynamic.start + i, &POISON, 2))
            return set_error(0, "byte %zu of dynamic shared memory was written, but the launch asked for %zu bytes", i,
                             launch.shared_bytes);
}

void on_fault(int number, siginfo_t *info, void *) {
    if (!here || !here->running) {  // not ours: once more, without this handler
        signal(number, SIG_DFL);
        return;
    }
    Block &b = block();
    const Fiber &f = *here->running;
    const ptrdiff_t into = (char *)info->si_addr - (b.stacks + (&f - b.fibers.data()) * (ptrdiff_t)STACK);
    const bool overflow = number != SIGFPE && 0 <= into && into < (ptrdiff_t)b.page;
    const char *what = number == SIGFPE ? "divided an integer by zero"
                       : overflow       ? "needs more than 120 KiB for its local variables"
                                        : "read or wrote memory far outside every array";
    const std::string after = f.line ? ", somewhere after line " + std::to_string(f.line) : "";
    set_error(0, "%s %s%s", b.name(f).c_str(), what, after.c_str());
    leave();
}

struct CatchFaults {  // while it lives: SIGSEGV and the like in a kernel become an error of the block
    static constexpr int numbers[] = {SIGSEGV, SIGBUS, SIGFPE};
    struct sigaction before[3];
    CatchFaults() {
        struct sigaction action = {};
        action.sa_sigaction = on_fault;
        action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
        for (int i = 0; i < 3; i++) sigaction(numbers[i], &action, &before[i]);
    }
    ~CatchFaults() {
        for (int i = 0; i < 3; i++) sigaction(numbers[i], &before[i], nullptr);
    }
};

void work(Launch &launch, std::atomic<int64_t> &next, std::mutex &reporting) {
    const int64_t total = int64_t{launch.grid[0]} * launch.grid[1] * launch.grid[2];
    std::vector<char> signal_stack(64 << 10);  // a fault may be the end of a thread's own stack
    stack_t alternative = {}, before = {};
    alternative.ss_sp = signal_stack.data(), alternative.ss_size = signal_stack.size();
    sigaltstack(&alternative, &before);
    {
        Block block(launch);
        for (int64_t n = next++; n < total && !__atomic_load_n(&launch.stop, __ATOMIC_RELAXED); n = next++) {
            block.start(n);
            if (block.error.empty()) continue;
            // Blocks below n are done or under way: the first of the errors is the same in every run.
            std::lock_guard<std::mutex> lock(reporting);
            if (launch.failed_block < 0 || n < launch.failed_block) {
                launch.failed_block = n, launch.line = block.error_line;
                snprintf(launch.text, sizeof launch.text, "%s, in block (%u, %u, %u)", block.error.c_str(), block.block.x,
                         block.block.y, block.block.z);
            }
            next = total;
        }
    }
    sigaltstack(&before, nullptr);
}
}

extern "C" __attribute__((visibility("default"))) void lab_run(lab::Launch *launch) {
    lab::CatchFaults catching;
    std::atomic<int64_t> next{0};
    std::mutex reporting;
    std::vector<std::thread> workers;
    for (int i = 0; i < launch->workers; i++)
        workers.emplace_back([&] { lab::work(*launch, next, reporting); });
    for (std::thread &worker : workers) worker.join();
}
