#pragma once
#include <functional>
#include <vector>

#include "hetermoe/data/dataset.h"
#include "hetermoe/data/source_files.h"

namespace hetermoe {

/// The inputs that decide the tokens of a text: files with their sizes and times, the tokenizer and how it is
/// used, the version of the program. Null where tokens are not kept: data.cache is none, the tokens are bytes
/// or those of files, the text is short or of conversations.
Json cache_identity(const DataOptions& options, const Tokenizer* tokenizer,
                    const std::vector<SourceFile>& files);

/// The source that an earlier start has kept under an identity, else that of make(), which is then kept.
/// One process of a node makes it and others wait for it, by a lock (flock) on a file of the folder. Where
/// the folder cannot be written, a note on stderr says so. Throws what make() throws.
Source cached_source(const std::filesystem::path& folder, const Json& identity,
                     const std::function<Source()>& make);

/// Where data.cache keeps tokens; empty = nowhere.
std::filesystem::path token_cache_folder(const DataOptions& options);

}  // namespace hetermoe
