#!/bin/sh
# Makes the models of this folder, with spm_train of the Debian package sentencepiece: unigram without bytes, and BPE
# with bytes for what its pieces lack.
cd "$(dirname "$0")" && cat ../../../docs/glossary.md ../../../docs/architecture.md >text.tmp
spm_train --input=text.tmp --model_prefix=unigram --vocab_size=300 --normalization_rule_name=identity
spm_train --input=text.tmp --model_prefix=bpe --model_type=bpe --vocab_size=512 --byte_fallback \
  --normalization_rule_name=identity --remove_extra_whitespaces=false
rm text.tmp ./*.vocab
