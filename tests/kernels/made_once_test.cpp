#include "hetermoe/kernels/made_once.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace hetermoe::kernels {
namespace {

using namespace std::chrono_literals;

/// A compiler that ends once so many compilations run at the same time. It gives up after ten seconds.
class StandInCompiler {
 public:
  explicit StandInCompiler(int wanted) : wanted_(wanted) {}
  std::string compile(const std::string& program) {
    ++running_;
    const auto until = std::chrono::steady_clock::now() + 10s;
    while (running_ < wanted_ && std::chrono::steady_clock::now() < until) std::this_thread::yield();
    return running_ >= wanted_ ? program + " compiled" : program + " was alone";
  }
  int num_compiled() const { return running_; }

 private:
  int wanted_;
  std::atomic<int> running_ = 0;  // never less: all have to meet once
};

TEST(MadeOnce, DifferentKernelsAreCompiledAtTheSameTime) {
  StandInCompiler compiler(3);
  MadeOnce<std::string, std::string> codes;
  std::vector<std::jthread> threads;
  for (const std::string name : {"adamw", "route", "rotate"})
    threads.emplace_back([&, name] {
      EXPECT_EQ(codes.get(name, [&] { return compiler.compile(name); }), name + " compiled");
    });
}

TEST(MadeOnce, ThreadsThatWantTheSameKernelWaitForOneCompilation) {
  MadeOnce<std::string, std::string> codes;
  std::atomic<int> asked = 0, compiled = 0;
  {
    std::vector<std::jthread> threads;
    for (int i = 0; i < 8; ++i)
      threads.emplace_back([&] {
        ++asked;
        EXPECT_EQ(codes.get("adamw",
                            [&] {
                              ++compiled;
                              while (asked < 8) std::this_thread::yield();
                              return std::string("code");
                            }),
                  "code");
      });
  }
  EXPECT_EQ(compiled, 1);
  EXPECT_EQ(codes.get("adamw", [] { return std::string("anew"); }), "code");
}

TEST(MadeOnce, AFaultReachesTheCallerAndTheNextCallTriesAgain) {
  MadeOnce<int, int> values;
  EXPECT_THROW(values.get(1, []() -> int { throw std::runtime_error("no room"); }), std::runtime_error);
  EXPECT_EQ(values.get(1, [] { return 7; }), 7);
}

}  // namespace
}  // namespace hetermoe::kernels
