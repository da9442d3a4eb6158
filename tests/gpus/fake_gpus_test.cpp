#include "tests/gpus/fake_gpus.h"

#include <gtest/gtest.h>

#include "hetermoe/device/accelerator.h"
#include "hetermoe/device/host_copy.h"
#include "hetermoe/device/stream.h"
#include "tests/support/faults.h"

// The GPUs of these tests compute as a CPU does, and find what waits for nothing.
namespace hetermoe::testing {
namespace {

/// "" = none was found.
std::string first_fault() {
  const std::vector<std::string> all = faults_of_fake_gpus();
  return all.empty() ? "" : all[0];
}

at::Tensor numbers(i32 gpu) {
  return at::arange(12, at::TensorOptions().dtype(at::kDouble)).view({3, 4}).to(fake_gpu(gpu));
}

TEST(FakeGpus, ComputeAsACpuDoes) {
  clear_fake_gpus();
  const at::Tensor a = numbers(1), c = a.to(at::kCPU);
  EXPECT_EQ(a.device(), fake_gpu(1));
  EXPECT_TRUE(at::equal(at::mm(a, a.t()).to(at::kCPU), at::mm(c, c.t())));
  EXPECT_TRUE(
      at::equal(at::cat({a, a.narrow(0, 1, 2)}).sum(0).to(at::kCPU), at::cat({c, c.narrow(0, 1, 2)}).sum(0)));
  EXPECT_EQ(a.max().item<double>(), 11);
  at::Tensor b = a.clone();
  b.select(1, 2).add_(a.select(1, 0)).mul_(2);
  EXPECT_EQ(b.to(at::kCPU)[2][2].item<double>(), 36);
  EXPECT_EQ(first_fault(), "");
}

TEST(FakeGpus, DifferentiateOnTheStreamOfForward) {
  clear_fake_gpus();
  const OwnStream own(fake_gpu(1));
  at::Tensor x = numbers(1).set_requires_grad(true);
  const at::Tensor y = at::softmax(x, 1).mul(x).sum();
  y.backward();
  at::Tensor c = numbers(1).to(at::kCPU).set_requires_grad(true);
  at::softmax(c, 1).mul(c).sum().backward();
  EXPECT_TRUE(at::allclose(x.grad().to(at::kCPU), c.grad()));
  EXPECT_EQ(first_fault(), "");
}

TEST(FakeGpus, FindAReaderThatDoesNotWait) {
  for (const bool waits : {true, false}) {
    clear_fake_gpus();
    at::Tensor a = numbers(0);
    EventPtr written;
    {
      const OwnStream own(fake_gpu(0));
      a.add_(1);
      written = record_event(fake_gpu(0));
    }
    const OwnStream own(fake_gpu(0));
    if (waits) written->hold_current_stream();
    const at::Tensor sum = a.sum();
    if (waits)
      EXPECT_EQ(first_fault(), "");
    else
      EXPECT_TRUE(has(first_fault(), "reads what add")) << first_fault();
  }
}

TEST(FakeGpus, FindAWriterThatDoesNotWaitForAReader) {
  clear_fake_gpus();
  at::Tensor a = numbers(0);
  {
    const OwnStream own(fake_gpu(0));
    const at::Tensor sum = a.sum();
    finish_stream(fake_gpu(0));
    const at::Tensor again = a.sum();
  }
  a.zero_();
  EXPECT_TRUE(has(first_fault(), "zero_ on stream 0 of GPU 0 writes what sum on")) << first_fault();
}

TEST(FakeGpus, FindMemoryThatIsDroppedInUse) {
  for (const bool waits : {true, false}) {
    clear_fake_gpus();
    at::Tensor a = numbers(0);
    const OwnStream own(fake_gpu(0));
    const at::Tensor sum = a.sum();
    if (waits) finish_stream(fake_gpu(0));
    a.reset();
    EXPECT_EQ(faults_of_fake_gpus().empty(), waits);
  }
}

TEST(FakeGpus, PinnedMemoryHoldsNothingBeforeTheHostHasWaited) {
  clear_fake_gpus();
  const at::Tensor a = numbers(0), host = start_to_host(a);
  EXPECT_TRUE(host.isnan().all().item<bool>());
  finish_stream(fake_gpu(0));
  EXPECT_EQ(host[2][3].item<double>(), 11);
}

TEST(FakeGpus, FindAHostThatChangesWhatIsBeingCopied) {
  for (const bool waits : {true, false}) {
    clear_fake_gpus();
    at::Tensor host = at::ones({4}, at::TensorOptions().pinned_memory(true));
    const at::Tensor a = host.to(fake_gpu(0), /*non_blocking=*/true);
    if (waits) finish_stream(fake_gpu(0));
    host.zero_();
    finish_stream(fake_gpu(0));
    EXPECT_EQ(faults_of_fake_gpus().empty(), waits);
  }
}

}  // namespace
}  // namespace hetermoe::testing
