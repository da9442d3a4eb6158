#include <gtest/gtest.h>

#include <set>

#include "hetermoe/cluster/cluster.h"

namespace hetermoe {
namespace {

const DeviceType& type(const std::string& name) { return catalogue_device(name, "test"); }

TEST(Catalogue, HoldsTheUsualDevices) {
  const std::vector<std::string> names = known_device_types();
  const std::set<std::string> known(names.begin(), names.end());
  for (const char* name :
       {"P100",    "V100",       "T4",  "RTX2080Ti", "RTX3090", "RTX4090", "RTX5090", "A10", "A40",
        "A100-40", "A100-80",    "L4",  "L40S",      "H100",    "H200",    "B200",    "CPU", "A6000",
        "A5000",   "RTX6000Ada", "A30", "H20",       "A800",    "V100-32", "RTX3080"}) {
    EXPECT_TRUE(known.contains(name)) << name;
  }
}

TEST(Catalogue, EveryEntryIsCompletePlausibleAndSourced) {
  for (const std::string& name : known_device_types()) {
    const DeviceType& t = type(name);
    EXPECT_FALSE(t.description.empty()) << name;
    EXPECT_FALSE(t.source.empty()) << name;
    EXPECT_GE(t.year, 2016) << name;
    EXPECT_GT(t.l2_mib, 0) << name;
    EXPECT_GT(t.fp64_tflops, 0) << name;
    EXPECT_LE(t.fp64_tflops, t.fp32_tflops) << name;
    if (t.compute_capability == 0) continue;
    EXPECT_GE(t.tdp_w, 70) << name;
    EXPECT_LE(t.tdp_w, 1000) << name;
    EXPECT_EQ(t.price_per_hour, 0) << name;
    // Below sm80: no bf16 units and no flash kernel.
    EXPECT_EQ(t.bf16_tflops > 0, t.compute_capability >= 8) << name;
    EXPECT_EQ(t.attention_kernel,
              t.compute_capability >= 8 ? AttentionKernel::kFlash : AttentionKernel::kMemEfficient)
        << name;
    EXPECT_GT(t.fp16_tflops, t.fp32_tflops) << name;
    // A slip of a digit or unit falls out of this range: the listed cards lie between 9.6 (A100-80)
    // and 106 (L40S).
    EXPECT_GT(t.fp32_tflops * 1e3 / t.memory_gb_s, 8) << name;
    EXPECT_LT(t.fp32_tflops * 1e3 / t.memory_gb_s, 120) << name;
  }
}

TEST(Catalogue, WhoHasEfficienciesSaysWhereFrom) {
  for (const std::string& name : known_device_types()) {
    const DeviceType& t = type(name);
    EXPECT_EQ(t.gemm_efficiency > 0, !t.efficiency_source.empty()) << name;
    EXPECT_EQ(t.attention_efficiency > 0, !t.efficiency_source.empty()) << name;
  }
}

TEST(Catalogue, FiguresOfThePaperDevices) {
  EXPECT_EQ(type("A40").fp16_tflops, 149.7);
  EXPECT_EQ(type("A40").memory_gib, 45);  // with ECC
  EXPECT_EQ(type("A40").memory_gb_s, 696);
  EXPECT_EQ(type("V100").fp16_tflops, 112);
  EXPECT_EQ(type("V100").memory_gb_s, 900);
  EXPECT_EQ(type("L40S").fp16_tflops, 362.05);
  EXPECT_EQ(type("T4").fp16_tflops, 65);
  EXPECT_EQ(type("T4").memory_bytes(), 15.0 * 1024 * 1024 * 1024);
}

TEST(Catalogue, NamesIgnoreCase) { EXPECT_EQ(&type("rtx2080ti"), &type("RTX2080Ti")); }

TEST(Catalogue, UnknownNameIsAnErrorWithTheNearest) {
  try {
    catalogue_device("A100", "job.yaml x");
    FAIL();
  } catch (const ConfigError& error) {
    const std::string text = error.what();
    EXPECT_TRUE(text.starts_with("[job.yaml x] unknown device type \"A100\". Known: A10, A100-40, A100-80, "))
        << text;
    EXPECT_TRUE(text.ends_with("Did you mean \"A100-40\"?")) << text;
  }
}

TEST(Peak, StandsInForMissingDtypes) {
  EXPECT_EQ(type("V100").peak(Dtype::kFp16), 112e12);
  EXPECT_EQ(type("V100").peak(Dtype::kBf16), 112e12);
  EXPECT_EQ(type("V100").peak(Dtype::kFp32), 14e12);
  EXPECT_EQ(type("V100").peak(Dtype::kFp64), 7e12);
  DeviceType plain;
  plain.name = "plain";
  plain.fp32_tflops = 6.4;
  EXPECT_EQ(plain.peak(Dtype::kFp16), 6.4e12);
  EXPECT_EQ(plain.peak(Dtype::kBf16), 6.4e12);
  EXPECT_EQ(plain.peak(Dtype::kFp64), 0.1e12);
  plain.bf16_tflops = 20;
  EXPECT_EQ(plain.peak(Dtype::kFp16), 20e12);
}

TEST(Dtype, SizesAndNames) {
  EXPECT_EQ(bytes_of(Dtype::kFp64), 8);
  EXPECT_EQ(bytes_of(Dtype::kFp32), 4);
  EXPECT_EQ(bytes_of(Dtype::kBf16), 2);
  EXPECT_EQ(bytes_of(Dtype::kFp16), 2);
  EXPECT_EQ(name_of(Dtype::kBf16), "bf16");
  EXPECT_EQ(name_of(AttentionKernel::kMemEfficient), "mem_efficient");
}

}  // namespace
}  // namespace hetermoe
