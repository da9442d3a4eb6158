#include "hetermoe/data/token_files.h"

#include "fuzz/scratch.h"
#include "fuzz/target.h"

// An index of Megatron-LM beside a .bin of any size: the first four bytes say of which. What is read must lie
// within that file.
namespace hetermoe::fuzz {
namespace {

void run(const std::string& input) {
  std::uint32_t bin_bytes = 0;
  if (input.size() < sizeof(bin_bytes)) return;
  std::memcpy(&bin_bytes, input.data(), sizeof(bin_bytes));
  const MegatronIndex read =
      parse_megatron_index(std::string_view(input).substr(sizeof(bin_bytes)), bin_bytes, "input");
  if (read.num_tokens * bytes_of(read.type) != bin_bytes) throw std::logic_error("tokens beyond the .bin");
  i64 before = -1;
  for (const i64 start : read.starts) {
    if (start <= before || start >= read.num_tokens)
      throw std::logic_error("a document outside of the tokens");
    before = start;
  }
}

std::vector<std::string> seeds() {
  const ScratchFolder folder;
  std::vector<std::string> out;
  for (const i64 vocab : {256, 100000}) {
    MegatronWriter writer(folder.path() / "seed", vocab);
    for (const std::vector<i64>& document : std::vector<std::vector<i64>>{{1, 2, 3}, {}, {7}})
      writer.add(document);
    writer.finish();
    const auto bin_bytes = static_cast<std::uint32_t>(std::filesystem::file_size(folder.path() / "seed.bin"));
    out.push_back(std::string(reinterpret_cast<const char*>(&bin_bytes), sizeof(bin_bytes)) +
                  read_text(folder.path() / "seed.idx"));
  }
  return out;
}

}  // namespace

extern const Target kTokenFiles{"token_files", run, seeds};

}  // namespace hetermoe::fuzz
