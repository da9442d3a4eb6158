#include "hetermoe/base/error.h"
#include "hetermoe/data/tokenizer.h"

namespace hetermoe {

std::shared_ptr<const Tokenizer> read_sentencepiece(const std::string& path) {
  fail<ConfigError>("data.tokenizer",
                    "got {}, but this program was built without libsentencepiece: install "
                    "libsentencepiece-dev and build again",
                    path);
}

}  // namespace hetermoe
