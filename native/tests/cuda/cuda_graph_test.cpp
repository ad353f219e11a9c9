// Memory that is kept for reuse, recording, and which arguments of kernels are addresses.
#include <atomic>
#include <chrono>
#include <thread>

#include "../../cuda/block_cache.h"
#include "../../cuda/context.h"
#include "../../cuda/delegate.h"
#include "../../cuda/graph.h"
#include "cuda_unit_test.h"

namespace pteron::testing {

namespace {

constexpr size_t kBytes = 1024;  // of an input or output of the graphs below

// dst[i] = src[i] for one block of kBytes; the third argument is only there.
void move_block(void* arguments) {
  auto** words = static_cast<void**>(arguments);
  std::memcpy(words[0], words[1], kBytes);
}

Stream recording_stream() { return *caller_stream(0); }

void launch_move(const void* dst, const void* src, const void* more) {
  const void* words[] = {dst, src, more};
  fake->launch(recording_stream(), move_block, words, 3);
}

// Memory of the test, of one value.
struct Memory {
  explicit Memory(size_t nbytes, unsigned char value = 0) : data(allocate(0, nbytes)) {
    const ContextGuard guard(0);
    check(driver().fill_async(to_device_ptr(data), value, nbytes, nullptr), "fill");
  }
  ~Memory() { cuda::free(0, data); }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  unsigned char first() const { return *static_cast<unsigned char*>(data); }
  void* at(size_t offset) const { return static_cast<char*>(data) + offset; }

  void* data;
};

// A graph that moves `in` to `out`; `more` is an argument besides.
std::unique_ptr<Graph> record(void* in, void* out, const void* more, Graph* earlier,
                              const void* outer) {
  auto graph = std::make_unique<Graph>(0);
  graph->begin(earlier);
  graph->port(in, outer, kBytes, true, true);
  launch_move(out, in, more);
  graph->port(const_cast<void*>(outer), out, kBytes, false, true);
  graph->end(earlier);
  return graph;
}

// How many copies a launch from `src` to `dst` makes, which must be right.
uint64_t copies(Graph& graph, const Memory& dst, const Memory& src) {
  graph.connect(0, src.data);
  graph.connect(1, dst.data);
  fake->reset_counters();
  graph.launch(nullptr);
  EXPECT(dst.first() == src.first());
  return fake->counters().device_copies;
}

}  // namespace

TEST(graphs_use_the_memory_of_the_caller) {
  const Clean clean;
  const Memory a(4 * kBytes);
  const Memory b(8 * kBytes);
  const Memory outer(kBytes);
  const Memory src(kBytes, 7);
  const Memory dst(kBytes);
  const Memory same(8);
  const auto two = [&](void* in, void* out, const void* first, const void* second) {
    auto earlier = record(a.at(0), a.at(kBytes), first, nullptr, outer.data);
    auto graph = record(in, out, second, earlier.get(), outer.data);
    return copies(*graph, dst, src);
  };
  EXPECT(two(b.at(0), b.at(2 * kBytes), same.data, same.data) == 0);
  // An address in the middle of the input; one behind its end, which is the output's too.
  EXPECT(two(b.at(0), b.at(2 * kBytes), a.at(8), b.at(8)) == 0);
  EXPECT(two(b.at(0), b.at(2 * kBytes), a.at(kBytes), b.at(kBytes)) == 2);
  // Both have moved as far: an address says nothing of whose it is.
  EXPECT(two(b.at(0), b.at(kBytes), same.data, same.data) == 2);
  // What differs and is no address of theirs.
  EXPECT(two(b.at(0), b.at(2 * kBytes), a.at(3 * kBytes), b.at(3 * kBytes)) == 2);
  EXPECT(two(b.at(0), b.at(2 * kBytes), nullptr, same.data) == 2);
}

TEST(graphs_take_the_same_blocks_again) {
  const Clean clean;
  std::vector<void*> before;
  std::unique_ptr<Graph> earlier;
  for (int pass = 0; pass < 3; ++pass) {
    auto graph = std::make_unique<Graph>(0);
    graph->begin(earlier.get());
    std::vector<void*> taken;
    for (const size_t nbytes : {700, 4096, 512, 512}) {
      taken.push_back(allocate_async(0, nbytes, recording_stream()));
      if (nbytes == 4096) free_async(0, taken.front(), recording_stream());
    }
    EXPECT(taken[2] == taken[0]);  // given back in the meantime
    for (size_t i = 1; i < taken.size(); ++i) free_async(0, taken[i], recording_stream());
    graph->end(nullptr);
    EXPECT(pass == 0 || taken == before);
    before = taken;
    earlier = std::move(graph);
  }
}

TEST(memory_that_outlives_its_graph) {
  const Clean clean;
  void* kept = nullptr;
  {
    Graph graph(0);
    graph.begin(nullptr);
    kept = allocate_async(0, 64, recording_stream());
    EXPECT_TEXT(thrown([&] { graph.end(nullptr); }), "keeps memory");
  }
  EXPECT(!Graph::is_recording() && !caller_stream(0));
  free_async(0, kept, nullptr);
}

TEST(memory_of_before_a_graph) {
  const Clean clean;
  void* block = allocate_async(0, 64, nullptr);
  {
    Graph graph(0);
    graph.begin(nullptr);
    free_async(0, block, recording_stream());
    EXPECT_TEXT(thrown([&] { graph.end(nullptr); }), "that it had before");
  }
  synchronize_device(0);
}

TEST(recordings_that_others_end) {
  const Clean clean;
  Graph graph(0);
  graph.begin(nullptr);
  {
    const ContextGuard guard(0);  // as any library in this process may
    EXPECT(driver().context_synchronize() != kSuccess);
  }
  EXPECT_TEXT(thrown([&] { graph.end(nullptr); }), "record a CUDA graph");
  EXPECT(!Graph::is_recording());
  synchronize_device(0);
}

TEST(waits_let_recordings_end) {
  const Clean clean;
  Graph graph(0);
  graph.begin(nullptr);
  std::atomic<bool> waited{false};
  std::thread other([&] {
    synchronize_device(0);
    waited = true;
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT(!waited);
  synchronize_device(1);
  graph.end(nullptr);
  other.join();
}

TEST(blocks_without_a_model_are_not_kept) {
  const Clean clean;
  EXPECT(live_handles() == 0);
  void* block = allocate_async(0, 64, nullptr);
  EXPECT(!block_cache(0).put(block, 64, nullptr));
  EXPECT(block_cache(0).take(64, nullptr) == nullptr);
  free_async(0, block, nullptr);
  EXPECT(BlockCache::rounded(0) == 512);
  EXPECT(BlockCache::rounded(512) == 512 && BlockCache::rounded(513) == 1024);
}

}  // namespace pteron::testing
