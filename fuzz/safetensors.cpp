#include "hetermoe/weights/safetensors.h"

#include "fuzz/scratch.h"
#include "fuzz/target.h"

// A safetensors file and every tensor in it.
namespace hetermoe::fuzz {
namespace {

void run(const std::string& input) {
  static ScratchFile file;
  file.write(input);
  const SafetensorsReader reader(file.path());
  for (const std::string& name : reader.names()) {
    const at::Tensor tensor = reader.read(name);
    if (!tensor.defined()) throw std::logic_error(name + " is read as nothing");
  }
}

std::vector<std::string> seeds() {
  const ScratchFolder folder;
  const std::vector<NamedTensor> tensors = {{"a", at::arange(6).to(at::kFloat).view({2, 3})},
                                            {"b", at::ones({3}).to(at::kBFloat16)},
                                            {"none", at::empty({0, 4}, at::kDouble)},
                                            {"one", at::full({}, 7)}};
  std::vector<std::string> texts;
  for (const std::vector<NamedTensor>& part : {tensors, {tensors[0]}, {}}) {
    write_safetensors(folder.path() / "x", part);
    texts.push_back(read_text(folder.path() / "x"));
  }
  // As other programs write it: without checksums.
  const std::string header = R"({"w":{"dtype":"I64","shape":[1],"data_offsets":[0,8]}})";
  std::string length(8, '\0');
  length[0] = static_cast<char>(header.size());
  texts.push_back(length + header + std::string(8, '\1'));
  return texts;
}

}  // namespace

extern const Target kSafetensors{"safetensors", run, seeds};

}  // namespace hetermoe::fuzz
