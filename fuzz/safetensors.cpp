#include "hetermoe/train/safetensors.h"

#include "fuzz/scratch.h"
#include "fuzz/target.h"

// A safetensors file: its header, and the tensors that the header names.
namespace hetermoe::fuzz {
namespace {

void run(const std::string& input) {
  const std::filesystem::path path = scratch_folder() / "input.safetensors";
  put_file(path, input);
  const SafetensorsReader reader(path);
  for (const std::string& name : reader.names()) reader.read(name);
}

std::vector<std::string> seeds() {
  const std::filesystem::path path = scratch_folder() / "seed.safetensors";
  std::vector<std::string> texts;
  write_safetensors(path, {{"a", at::ones({3, 5})}, {"b", at::zeros({7}, at::kBFloat16)}});
  texts.push_back(read_text(path));
  write_safetensors(path, {{"c", at::ones({2, 2}, at::kDouble)}, {"none", at::empty({0, 4})}});
  texts.push_back(read_text(path));
  // As another program writes it: without checksums.
  const std::string header = R"({"x":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})";
  std::string bare(8, '\0');
  bare[0] = static_cast<char>(header.size());
  texts.push_back(bare + header + std::string(8, '\1'));
  return texts;
}

}  // namespace

extern const Target kSafetensors{"safetensors", run, seeds};

}  // namespace hetermoe::fuzz
