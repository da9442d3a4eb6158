#include "hetermoe/data/text.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstring>
#include <fstream>
#include <new>
#include <string_view>

#include "hetermoe/base/hash.h"

namespace hetermoe {
namespace fs = std::filesystem;
namespace {

/// A file to read. Files that were found in a folder may be skipped when they are no text.
struct Source {
  fs::path path;
  bool found = false;
};

bool has_extension(const fs::path& path, const std::vector<std::string>& extensions) {
  const std::string name = path.filename().string();
  return extensions.empty() || std::any_of(extensions.begin(), extensions.end(),
                                           [&](const std::string& end) { return name.ends_with(end); });
}

/// Whether this is the folder of add-on packages, which lies inside the library but differs from machine to
/// machine.
bool is_add_on_folder(const fs::path& path) {
  const std::string name = path.filename().string();
  return name == "site-packages" || name == "dist-packages";
}

void add_folder(const fs::path& folder, const std::vector<std::string>& extensions, bool library,
                std::vector<Source>& out) {
  std::vector<Source> files;
  std::error_code code;
  fs::recursive_directory_iterator entry(folder, code), end;
  while (!code && entry != end) {
    std::error_code ignored;  // a dangling link is no regular file
    if (library && is_add_on_folder(entry->path())) {
      entry.disable_recursion_pending();
    } else if (entry->is_regular_file(ignored) && has_extension(entry->path(), extensions)) {
      files.push_back({entry->path(), true});
    }
    entry.increment(code);
  }
  if (code) fail<IoError>("data.paths", "cannot list folder {}: {}", folder.string(), code.message());
  std::sort(files.begin(), files.end(),
            [](const Source& a, const Source& b) { return a.path.native() < b.path.native(); });
  out.insert(out.end(), files.begin(), files.end());
}

std::vector<Source> find_sources(const TextOptions& options) {
  std::vector<Source> sources;
  if (options.paths.empty()) {
    const fs::path library = python_library();
    if (library.empty()) {
      fail<ConfigError>(
          "data.paths",
          "is empty, and this machine has no Python standard library to read instead. Name files or "
          "folders of text, as --data.paths my_texts/");
    }
    add_folder(library, options.extensions.empty() ? std::vector<std::string>{".py"} : options.extensions,
               true, sources);
  }
  for (const std::string& path : options.paths) {
    std::error_code code;
    const fs::file_status status = fs::status(path, code);
    if (!fs::exists(status)) {
      const bool absent = status.type() == fs::file_type::not_found;
      fail<IoError>("data.paths", "cannot read {}: {}", path,
                    absent ? "no such file or folder" : code.message());
    }
    if (fs::is_directory(status)) {
      add_folder(path, options.extensions, false, sources);
    } else {
      sources.push_back({path, false});
    }
  }
  return sources;
}

void append(std::string& out, std::string_view bytes) {
  try {
    out.append(bytes);
  } catch (const std::bad_alloc&) {
    fail<IoError>("data.max_bytes", "there is no memory for more than {} bytes of text: lower it",
                  out.size());
  }
}

/// Appends at most `limit` bytes of a file. Returns false and appends nothing when the bytes hold a zero
/// byte.
bool append_file(const fs::path& path, i64 limit, std::string& out) {
  std::ifstream in(path, std::ios::binary);
  if (!in) fail<IoError>("data.paths", "cannot read {}: {}", path.string(), std::strerror(errno));
  const std::size_t before = out.size();
  std::array<char, 1 << 16> chunk;
  while (limit > 0 && in) {
    in.read(chunk.data(), std::min<std::streamsize>(limit, chunk.size()));
    const std::streamsize got = in.gcount();
    if (std::memchr(chunk.data(), 0, static_cast<std::size_t>(got)) != nullptr) {
      out.resize(before);
      return false;
    }
    append(out, {chunk.data(), static_cast<std::size_t>(got)});
    limit -= got;
  }
  if (in.bad()) fail<IoError>("data.paths", "reading {} stopped: {}", path.string(), std::strerror(errno));
  return true;
}

at::Tensor byte_tensor(const char* data, i64 size) {
  at::Tensor out = at::empty({size}, at::kByte);
  if (size > 0) std::memcpy(out.data_ptr(), data, static_cast<std::size_t>(size));
  return out;
}

/// Checks that there is text for one sequence. It needs one byte more than it has tokens, for the last
/// target.
void check_length(i64 bytes, i64 seq_len, const char* part, const Text& text) {
  if (bytes > seq_len) return;
  fail<ConfigError>(
      "data.paths",
      "too little text for {}: got {} bytes from {} files, expected at least {} (train.seq_len + 1). "
      "Name more text, or lower train.seq_len{}",
      part, bytes, text.num_files, seq_len + 1,
      std::strcmp(part, "validation") == 0 ? ", or set data.validation_share" : "");
}

/// One pass of a Feistel network: a bijection of the numbers of 2 * half_bits bits, whatever splitmix64()
/// does.
u64 permute(u64 x, int half_bits, u64 key) {
  const u64 mask = (u64{1} << half_bits) - 1;
  u64 left = x >> half_bits, right = x & mask;
  for (u64 round = 0; round < 6; ++round) {
    const u64 next = left ^ (splitmix64(key ^ splitmix64(right * 8 + round)) & mask);
    left = right;
    right = next;
  }
  return left << half_bits | right;
}

}  // namespace

fs::path python_library() {
  fs::path newest;
  int newest_version = -1;
  for (const char* root : {"/usr/lib", "/usr/lib64", "/usr/local/lib"}) {
    std::error_code code;
    for (fs::directory_iterator entry(root, code), end; !code && entry != end; entry.increment(code)) {
      const std::string name = entry->path().filename().string();
      int version = -1;
      if (!name.starts_with("python3.") || !fs::exists(entry->path() / "os.py")) continue;
      std::from_chars(name.data() + 8, name.data() + name.size(), version);
      if (version > newest_version) {
        newest_version = version;
        newest = entry->path();
      }
    }
  }
  return newest;
}

Text load_text(const TextOptions& options, i64 seq_len) {
  Text text;
  std::string all;
  for (const Source& source : find_sources(options)) {
    const i64 limit = options.max_bytes - static_cast<i64>(all.size());
    if (limit <= 0) break;
    if (append_file(source.path, limit, all)) {
      ++text.num_files;
    } else if (source.found) {
      ++text.num_skipped;
    } else {
      fail<IoError>("data.paths", "{} is no text: it has a NUL byte, expected text", source.path.string());
    }
  }
  const i64 size = static_cast<i64>(all.size());
  const i64 validation = static_cast<i64>(options.validation_share * static_cast<double>(size));
  check_length(size - validation, seq_len, "training", text);
  if (options.validation_share > 0) check_length(validation, seq_len, "validation", text);
  text.train = byte_tensor(all.data(), size - validation);
  text.validation = byte_tensor(all.data() + (size - validation), validation);
  return text;
}

void check_vocabulary(const Text& text, const ModelConfig& model) {
  i64 largest = 0;
  for (const at::Tensor& bytes : {text.train, text.validation}) {
    if (bytes.numel() > 0) largest = std::max(largest, bytes.max().item<i64>());
  }
  if (largest < model.vocab) return;
  fail<ConfigError>(
      "model",
      "{} has a vocabulary of {} tokens, but each byte of the text is a token and there are bytes up "
      "to {}: expected a vocab_size of at least {} (256 serves any text)",
      model.name, model.vocab, largest, largest + 1);
}

Sampler::Sampler(at::Tensor bytes, i64 seq_len, u64 seed)
    : bytes_(bytes.contiguous()),
      seq_len_(seq_len),
      num_windows_((bytes.numel() - 1) / seq_len),
      seed_(seed) {
  HM_CHECK(bytes.scalar_type() == at::kByte && bytes.dim() == 1 && seq_len > 0, "bytes must be uint8 [n]");
  if (num_windows_ < 1) {
    fail<ConfigError>("data", "too little text: got {} bytes, expected at least {}", bytes.numel(),
                      seq_len + 1);
  }
  half_bits_ = 1;
  while ((i64{1} << (2 * half_bits_)) < num_windows_) ++half_bits_;
}

i64 Sampler::window_of(i64 index) const {
  HM_CHECK(index >= 0, "sequence {}", index);
  const u64 epoch = static_cast<u64>(index / num_windows_);
  const u64 key = splitmix64(seed_ ^ splitmix64(epoch));
  u64 window = static_cast<u64>(index % num_windows_);
  do {  // walking along the cycle until the range is hit again keeps it a permutation
    window = permute(window, half_bits_, key);
  } while (window >= static_cast<u64>(num_windows_));
  return static_cast<i64>(window);
}

Batch Sampler::batch(i64 first, i64 count) const {
  Batch out{at::empty({count, seq_len_}, at::kLong), at::empty({count, seq_len_}, at::kLong),
            count * seq_len_};
  const std::uint8_t* bytes = bytes_.const_data_ptr<std::uint8_t>();
  i64* tokens = out.tokens.data_ptr<i64>();
  i64* targets = out.targets.data_ptr<i64>();
  for (i64 i = 0; i < count; ++i) {
    const std::uint8_t* window = bytes + window_of(first + i) * seq_len_;
    std::copy(window, window + seq_len_, tokens + i * seq_len_);
    std::copy(window + 1, window + 1 + seq_len_, targets + i * seq_len_);
  }
  return out;
}

double unigram_entropy(const at::Tensor& bytes) {
  HM_CHECK(bytes.scalar_type() == at::kByte && bytes.numel() > 0, "bytes must be uint8 and not empty");
  std::array<i64, 256> counts{};
  const at::Tensor flat = bytes.contiguous();
  const std::uint8_t* data = flat.const_data_ptr<std::uint8_t>();
  for (i64 i = 0; i < flat.numel(); ++i) ++counts[data[i]];
  double entropy = 0;
  for (const i64 count : counts) {
    const double share = static_cast<double>(count) / static_cast<double>(flat.numel());
    if (count > 0) entropy -= share * std::log(share);
  }
  return entropy;
}

}  // namespace hetermoe
