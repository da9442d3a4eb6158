#include "hetermoe/data/token_cache.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <iostream>

#include "hetermoe/base/cache_folder.h"
#include "hetermoe/base/error.h"
#include "hetermoe/base/hash.h"
#include "hetermoe/base/index.h"
#include "hetermoe/base/version.h"
#include "hetermoe/data/token_files.h"

namespace hetermoe {
namespace fs = std::filesystem;
namespace {

constexpr i64 kLeastBytes = 1 << 20;  // of text: less is made again as fast as it is found
constexpr int kFormat = 2;            // of what is kept, and how files are read

/// Waits until no other process has the file. Without a file system that locks nobody waits.
class FileLock {
 public:
  explicit FileLock(const fs::path& path) {
    file_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (file_ < 0) fail<IoError>(path.string(), "cannot write: {}", std::strerror(errno));
    while (::flock(file_, LOCK_EX) != 0 && errno == EINTR) {
    }
  }
  ~FileLock() { ::close(file_); }
  FileLock(const FileLock&) = delete;
  FileLock& operator=(const FileLock&) = delete;

 private:
  int file_;
};

/// Size and time of change of a file; null = it is no regular file.
Json stamp_of(const fs::path& path) {
  struct stat info {};
  if (::stat(path.c_str(), &info) != 0 || !S_ISREG(info.st_mode)) return nullptr;
  const i64 time = i64{info.st_mtim.tv_sec} * 1000000000 + info.st_mtim.tv_nsec;
  return Json::array({fs::absolute(path).lexically_normal().string(), i64{info.st_size}, time});
}

struct Numbers {
  i64 num_files = 0, num_skipped = 0, num_empty = 0, bytes_read = 0, bytes_there = 0;
  std::vector<std::string> skipped;
  template <class V>
  void fields(V& v) {
    v("num_files", num_files, "");
    v("num_skipped", num_skipped, "");
    v("num_empty", num_empty, "");
    v("bytes_read", bytes_read, "");
    v("bytes_there", bytes_there, "");
    v("skipped", skipped, "");
  }
};

/// Nothing where it is not there, damaged, or of another identity.
std::optional<Source> kept(const fs::path& prefix, const Json& identity) {
  const fs::path about = prefix.string() + ".json";
  std::error_code none;
  if (!fs::exists(about, none)) return std::nullopt;
  try {
    const Json json = read_json(about);
    if (!json.is_object() || json.value("identity", Json()) != identity) return std::nullopt;
    Numbers numbers;
    read_fields(json.at("numbers"), numbers, about.string());
    const auto read = std::make_shared<DocumentTokens>(read_megatron(prefix.string() + ".idx"));
    // Told as tokens in memory, so that a run is the same whether they were kept or just made.
    const TokenArray tokens(read, read->tokens.data(), read->tokens.type(), read->tokens.size(), false);
    Source out;
    out.all.append(tokens, read->starts);
    out.num_files = numbers.num_files, out.num_skipped = numbers.num_skipped;
    out.skipped = {numbers.skipped.begin(), numbers.skipped.end()};
    out.num_empty = numbers.num_empty;
    out.bytes_read = numbers.bytes_read, out.bytes_there = numbers.bytes_there;
    return out;
  } catch (const Error& error) {
    std::cerr << fmt::format("[data] kept tokens are damaged and made anew: {}\n", error.what());
    return std::nullopt;
  }
}

/// Under a name of this process first: nobody reads what is half written. The .json comes last.
void keep(const fs::path& prefix, const Json& identity, const Source& source, i64 vocab) {
  const std::string part = fmt::format("{}.{}", prefix.string(), ::getpid());
  MegatronWriter writer(part, vocab);
  for (i64 d = 0; d < source.all.num_documents(); ++d) {
    const i64 begin = source.all.document(d);
    const i64 end = d + 1 < source.all.num_documents() ? source.all.document(d + 1) : source.all.size();
    writer.add(source.all.tokens(begin, end - begin));
  }
  writer.finish();
  for (const char* ending : {".bin", ".idx"}) fs::rename(part + ending, prefix.string() + ending);
  const Numbers numbers = {source.num_files,   source.num_skipped,
                           source.num_empty,   source.bytes_read,
                           source.bytes_there, {source.skipped.begin(), source.skipped.end()}};
  const Json json = {{"identity", identity}, {"numbers", write_fields(numbers)}};
  write_text(prefix.string() + ".json", json.dump() + "\n");
}

}  // namespace

fs::path token_cache_folder(const DataOptions& options) {
  if (options.cache == "none") return {};
  return options.cache.empty() ? cache_folder("tokens") : fs::path(options.cache);
}

Json cache_identity(const DataOptions& options, const Tokenizer* tokenizer,
                    const std::vector<SourceFile>& files) {
  if (tokenizer == nullptr || tokenizer->fingerprint() == 0 || tokenizer->vocab_size() <= 256) return nullptr;
  if (token_cache_folder(options).empty()) return nullptr;
  Json stamps = Json::array();
  i64 bytes = 0;
  for (const SourceFile& file : files) {
    const bool is_kept =
        file.kind == FileKind::kText || (file.kind == FileKind::kJsonLines && options.chat_template.empty());
    const Json stamp = is_kept ? stamp_of(file.path) : Json();
    if (stamp.is_null()) return nullptr;
    bytes += stamp[1].get<i64>();
    stamps.push_back(stamp);
  }
  if (std::min(bytes, options.max_bytes.value_or(bytes)) < kLeastBytes) return nullptr;
  const auto or_null = [](const std::optional<i64>& value) { return value ? Json(*value) : Json(); };
  return {{"format", kFormat},
          {"program", version()},
          {"tokenizer", fmt::format("{:016x}", tokenizer->fingerprint())},
          {"vocab", tokenizer->vocab_size()},
          {"json_field", options.json_field},
          {"end_token", or_null(options.end_token ? options.end_token : tokenizer->end_token())},
          {"max_bytes", or_null(options.max_bytes)},
          {"files", std::move(stamps)}};
}

Source cached_source(const fs::path& folder, const Json& identity, const std::function<Source()>& make) {
  const fs::path prefix = folder / fmt::format("{:016x}", Fnv().add(identity.dump()).value());
  if (std::optional<Source> found = kept(prefix, identity)) return std::move(*found);
  std::optional<Source> made;
  try {
    fs::create_directories(folder);
    const FileLock lock(prefix.string() + ".lock");
    if (std::optional<Source> found = kept(prefix, identity)) return std::move(*found);
    made = make();
    keep(prefix, identity, *made, identity.at("vocab").get<i64>());
    std::cerr << fmt::format("[data] tokens are kept in {} for the next start (data.cache)\n",
                             folder.string());
  } catch (const IoError& error) {
    if (!made) made = make();
    std::cerr << fmt::format("[data] tokens are not kept: {}\n", error.what());
  } catch (const fs::filesystem_error& error) {
    if (!made) made = make();
    std::cerr << fmt::format("[data] tokens are not kept: {}: {}\n", error.path1().string(),
                             error.code().message());
  }
  return std::move(*made);
}

}  // namespace hetermoe
