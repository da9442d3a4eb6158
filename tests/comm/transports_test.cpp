#include "hetermoe/comm/transports.h"

#include <gtest/gtest.h>

#include "hetermoe/base/error.h"
#include "tests/support/error_of.h"

namespace hetermoe {
namespace {

class NumRanks : public Processes {
 public:
  explicit NumRanks(i32 num_ranks, bool by_mpi = false) : num_ranks_(num_ranks), by_mpi_(by_mpi) {}
  i32 num_ranks() const override { return num_ranks_; }
  bool has_mpi() const override { return by_mpi_; }

 private:
  i32 num_ranks_;
  bool by_mpi_;
};

std::string chosen(i32 num_ranks, c10::Device device) {
  return find_transport(NumRanks(num_ranks), device).name;
}

TEST(Transports, TheNumberOfProcessesAndTheirDeviceChoose) {
  EXPECT_EQ(chosen(1, c10::DeviceType::CPU), "in-process");
  EXPECT_EQ(chosen(1, c10::DeviceType::CUDA), "in-process");
  EXPECT_EQ(chosen(2, c10::DeviceType::CPU), "mpi");
  EXPECT_EQ(chosen(2, c10::DeviceType::CUDA), "nccl");
}

/// NCCL has one device a process, and no hosts.
TEST(Transports, GpusTalkOverMpiWhereAProcessHasSeveralOrHostsTakePart) {
  const NumRanks by_mpi(2, true), by_store(2);
  const c10::Device gpu = c10::DeviceType::CUDA;
  EXPECT_EQ(find_transport(by_mpi, gpu).name, std::string("nccl"));
  EXPECT_EQ(find_transport(by_mpi, gpu, "auto", {.hosts = true}).name, std::string("mpi"));
  EXPECT_EQ(find_transport(by_mpi, gpu, "auto", {.several_devices = true}).name, std::string("mpi"));
  EXPECT_EQ(find_transport(by_mpi, gpu, "mpi").name, std::string("mpi"));
  EXPECT_EQ(find_transport(by_store, gpu, "auto", {.hosts = true}).name, std::string("nccl"));
}

std::string named(i32 num_ranks, c10::Device device, const std::string& name) {
  return find_transport(NumRanks(num_ranks), device, name).name;
}

TEST(Transports, AreChosenByNameWhereTheyServe) {
  EXPECT_EQ(named(1, c10::DeviceType::CPU, "in-process"), "in-process");
  EXPECT_EQ(named(2, c10::DeviceType::CPU, "mpi"), "mpi");
  EXPECT_EQ(
      error_of<ConfigError>([] { named(2, c10::DeviceType::CPU, "nccl"); }),
      "[run.transport] got nccl, which serves processes with a GPU each: 2 processes on cpu need mpi, or "
      "auto");
  EXPECT_EQ(error_of<ConfigError>([] { named(1, c10::DeviceType::CPU, "mpi"); }),
            "[run.transport] got mpi, which serves processes of mpirun: 1 process on cpu needs "
            "in-process, or auto");
  const std::string unknown = error_of<ConfigError>([] { named(1, c10::DeviceType::CPU, "ncll"); });
  EXPECT_NE(unknown.find("unknown value \"ncll\""), std::string::npos) << unknown;
  EXPECT_NE(unknown.find("nccl"), std::string::npos) << unknown;
}

TEST(Transports, AKindMakesTheTransportOfItsName) {
  const Processes alone;
  const std::unique_ptr<Transport> transport =
      find_transport(alone, c10::DeviceType::CPU).make(alone, {.rank_of = {0, kNoRank, 0}, .queues = {1}});
  EXPECT_EQ(transport->name(), "in-process");
  EXPECT_EQ(transport->attributes(), find_transport(alone, c10::DeviceType::CPU).attributes);
  EXPECT_EQ(make_checksummed_transport(make_in_process_transport(2))->attributes(), transport->attributes());
}

TEST(Transports, IdleDevicesHaveNoProcess) {
  const std::vector<DeviceId> working = {0, 2, 3};
  EXPECT_EQ(spread_working_devices(working, 5, 3), (std::vector<i32>{0, kNoRank, 1, 2, kNoRank}));
  EXPECT_EQ(spread_working_devices(working, 4, 2), (std::vector<i32>{0, kNoRank, 0, 1}));
}

TEST(Transports, MoreProcessesThanWorkingDevicesAreRefused) {
  const std::vector<DeviceId> working = {1, 2};
  EXPECT_NE(error_of<ConfigError>([&] {
              spread_working_devices(working, 4, 4);
            }).find("4 processes for 2 devices: every process needs a device. Start with -np 2"),
            std::string::npos);
}

}  // namespace
}  // namespace hetermoe
