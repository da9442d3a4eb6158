#pragma once
#include <filesystem>
#include <string>
#include <vector>

#include "hetermoe/data/options.h"

namespace hetermoe {

/// kJsonLines: objects of JSON, on lines or in an array.
enum class FileKind { kText, kJsonLines, kMegatron, kLlmc };

/// Not yet tokens.
inline bool is_text(FileKind kind) { return kind == FileKind::kText || kind == FileKind::kJsonLines; }

/// A file to read. Text that was found in a folder is skipped when it is none.
struct SourceFile {
  std::filesystem::path path;  ///< of Megatron's files the .idx
  FileKind kind = FileKind::kText;
  bool found = false;
};

/// The folder of the newest Python 3 standard library with sources on this machine; empty when there is none.
std::filesystem::path python_library();

/// The files behind one of data.paths: itself, or what is in the folder, in the order of paths (compared byte
/// by byte). Throws IoError that names what cannot be read.
std::vector<SourceFile> find_files(const std::string& path, const std::vector<std::string>& extensions);
/// Files of the Python standard library, without add-on packages. Throws ConfigError when there is none.
std::vector<SourceFile> find_library_files(const std::vector<std::string>& extensions);

}  // namespace hetermoe
