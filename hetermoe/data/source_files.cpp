#include "hetermoe/data/source_files.h"

#include <algorithm>
#include <array>
#include <charconv>

#include "hetermoe/data/json_lines.h"
#include "hetermoe/data/lines_file.h"
#include "hetermoe/data/token_files.h"

namespace hetermoe {
namespace fs = std::filesystem;
namespace {

bool has_extension(const fs::path& path, const std::vector<std::string>& extensions) {
  const std::string name = path.filename().string();
  return extensions.empty() || std::any_of(extensions.begin(), extensions.end(),
                                           [&](const std::string& end) { return name.ends_with(end); });
}

bool is_file(const fs::path& path) {
  std::error_code ignored;  // a dangling link is no regular file
  return fs::is_regular_file(path, ignored);
}

/// Whether this is the folder of add-on packages, which lies inside the library but differs from machine to
/// machine.
bool is_add_on_folder(const fs::path& path) {
  const std::string name = path.filename().string();
  return name == "site-packages" || name == "dist-packages";
}

/// At most 1 KiB.
std::string begin_of(const fs::path& path) {
  std::string head(1024, '\0');
  std::ifstream in(path, std::ios::binary);
  in.read(head.data(), static_cast<std::streamsize>(head.size()));
  head.resize(static_cast<std::size_t>(in.gcount()));
  return head;
}

bool begins_as_llmc(const fs::path& path) {
  const std::string head = begin_of(path);
  return head.size() == 1024 && is_llmc(head);
}

FileKind kind_of(const fs::path& path) {
  const std::string end = (is_gzip(path) ? path.stem() : path).extension().string();
  if (end == ".jsonl" || end == ".ndjson") return FileKind::kJsonLines;
  if (is_gzip(path)) return FileKind::kText;  // which it is not: it has NUL bytes
  if (end == ".json" && is_file(path) && begins_as_json_array(begin_of(path))) return FileKind::kJsonLines;
  if (end == ".idx") return FileKind::kMegatron;
  if (end == ".bin" && is_file(path) && begins_as_llmc(path)) return FileKind::kLlmc;
  return FileKind::kText;
}

/// The .bin of an .idx is read by way of that.
bool has_index(const fs::path& path) {
  return path.extension() == ".bin" && is_file(fs::path(path).replace_extension(".idx"));
}

std::vector<SourceFile> files_of(const fs::path& folder, const std::vector<std::string>& extensions,
                                 bool library) {
  std::vector<SourceFile> files;
  std::error_code code;
  fs::recursive_directory_iterator entry(folder, code), end;
  while (!code && entry != end) {
    const fs::path& path = entry->path();
    if (library && is_add_on_folder(path)) {
      entry.disable_recursion_pending();
    } else if (is_file(path) && has_extension(path, extensions) && !has_index(path)) {
      files.push_back({path, kind_of(path), true});
    }
    entry.increment(code);
  }
  if (code) fail<IoError>("data.paths", "cannot list folder {}: {}", folder.string(), code.message());
  std::sort(files.begin(), files.end(),
            [](const SourceFile& a, const SourceFile& b) { return a.path.native() < b.path.native(); });
  return files;
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

std::vector<SourceFile> find_files(const std::string& path, const std::vector<std::string>& extensions) {
  // Megatron-LM names a pair of files by what both begin with.
  if (!fs::exists(path) && is_file(path + ".idx")) return {{path + ".idx", FileKind::kMegatron, false}};
  std::error_code code;
  const fs::file_status status = fs::status(path, code);
  if (!fs::exists(status)) {
    const bool absent = status.type() == fs::file_type::not_found;
    fail<IoError>("data.paths", "cannot read {}: {}", path,
                  absent ? "no such file or folder" : code.message());
  }
  if (fs::is_directory(status)) return files_of(path, extensions, false);
  if (has_index(path)) return {{fs::path(path).replace_extension(".idx"), FileKind::kMegatron, false}};
  return {{path, kind_of(path), false}};
}

std::vector<SourceFile> find_library_files(const std::vector<std::string>& extensions) {
  const fs::path library = python_library();
  if (library.empty()) {
    fail<ConfigError>(
        "data.paths",
        "is empty, and this machine has no Python standard library to read instead. Name files or "
        "folders of text, as --data.paths my_texts/");
  }
  return files_of(library, extensions.empty() ? std::vector<std::string>{".py"} : extensions, true);
}

}  // namespace hetermoe
