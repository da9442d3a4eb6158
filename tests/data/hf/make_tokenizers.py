#!/usr/bin/env python3
"""Makes the tokenizers of this folder, each of the shape that the tokenizer.json of a model family has, and the cases of their test:
texts with the ids that the package `tokenizers` gives them.

    python3 -m venv .venv-data && .venv-data/bin/pip install tokenizers==0.23.3
    .venv-data/bin/python tests/data/hf/make_tokenizers.py

NAME.json is the tokenizer, NAME.cases.json a list of [text, ids, ids with what the post-processor adds, decoded ids].
"""
import json
import random
import tempfile
from pathlib import Path

from tokenizers import Tokenizer, models, trainers

HERE = Path(__file__).parent
SIZE = 700

ENGLISH = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
QWEN = ENGLISH + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
LLAMA3 = QWEN.replace(r"\p{N}|", r"\p{N}{1,3}|")
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
O200K = "|".join([rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}*{LOWER}+{ENGLISH}?", rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}+{LOWER}*{ENGLISH}?",
                  r"\p{N}{1,3}", r" ?[^\s\p{L}\p{N}]+[\r\n/]*", r"\s*[\r\n]+", r"\s+(?!\S)", r"\s+"])
DEEPSEEK = [r"\p{N}{1,3}", "[一-龥\u3040-ゟ゠-ヿ]+",
            "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\r\n]*"
            "|\\s*[\r\n]+|\\s+(?!\\S)|\\s+"]
DEEPSEEK2 = ["[\r\n]", r"\s?\p{L}+", r"\s?[!-/:-~！-／：-～‘-‟　-。]+", r"\s+$", "[一-龥ࠀ-一가-퟿]+"]

BYTE_DECODER = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}
PIECE_DECODER = {"type": "Sequence", "decoders": [
    {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"},
    {"type": "Strip", "content": " ", "start": 1, "stop": 0}]}
NO_POST = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": False, "use_regex": True}


def byte_level(**options):
    return {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False, **options}


def split(pattern, behavior="Isolated", invert=False, kind="Regex"):
    return {"type": "Split", "pattern": {kind: pattern}, "behavior": behavior, "invert": invert}


def sequence(*steps, key="pretokenizers"):
    return {"type": "Sequence", key: list(steps)}


def frame(before, after=()):
    """A post-processor that puts tokens around a text; their numbers are filled in later."""
    entries = [{"SpecialToken": {"id": name, "type_id": 0}} for name in before] + [{"Sequence": {"id": "A", "type_id": 0}}]
    entries += [{"SpecialToken": {"id": name, "type_id": 0}} for name in after]
    return {"type": "TemplateProcessing", "single": entries, "pair": entries + [{"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {name: {"id": name, "ids": [], "tokens": [name]} for name in [*before, *after]}}


def token(content, special=True, **options):
    return {"content": content, "single_word": False, "lstrip": False, "rstrip": False, "normalized": not special, "special": special,
            **options}


IM = [token("<|endoftext|>"), token("<|im_start|>"), token("<|im_end|>"), token("<think>", False, normalized=False),
      token("</think>", False, normalized=False)]
PIECES = [token("<unk>"), token("<s>"), token("</s>")]
FALLBACK = {"byte_fallback": True, "fuse_unk": True, "unk_token": "<unk>"}
SHAPES = {
    "qwen3": dict(normalizer={"type": "NFC"}, pre=sequence(split(QWEN), byte_level(trim_offsets=False)), post=NO_POST, added=IM),
    "llama3": dict(pre=sequence(split(LLAMA3), byte_level()), model={"ignore_merges": True},
                   post={"type": "Sequence", "processors": [NO_POST, frame(["<|begin_of_text|>"])]},
                   added=[token("<|begin_of_text|>"), token("<|eot_id|>"), token("<|start_header_id|>"), token("<|end_header_id|>")]),
    "olmoe": dict(normalizer={"type": "NFC"}, pre=byte_level(use_regex=True), post=frame([], ["<|endoftext|>"]),
                  added=[token("<|endoftext|>"), token("|||IP_ADDRESS|||", False), token("  ", False), token("    ", False),
                         token("        ", False)]),
    "deepseek_v3": dict(normalizer=sequence(key="normalizers"), pre=sequence(*map(split, DEEPSEEK), byte_level()), post=NO_POST,
                        added=[token("<｜begin▁of▁sentence｜>"), token("<｜end▁of▁sentence｜>"), token("<｜User｜>", False, normalized=False)]),
    "deepseek_v2": dict(normalizer=sequence(key="normalizers"), post=NO_POST,
                        pre=sequence(*map(split, DEEPSEEK2), {"type": "Digits", "individual_digits": True}, byte_level()),
                        added=[token("<｜begin▁of▁sentence｜>"), token("<｜end▁of▁sentence｜>")]),
    "gpt_oss": dict(pre=sequence(split(O200K), byte_level()), added=[token("<|endoftext|>"), token("<|return|>")]),
    "llama2": dict(normalizer=sequence({"type": "Prepend", "prepend": "▁"},
                                       {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}, key="normalizers"),
                   model=FALLBACK, decoder=PIECE_DECODER, post=frame(["<s>"]), added=PIECES),
    "mixtral": dict(pre={"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": False}, model=FALLBACK,
                    decoder=PIECE_DECODER, post=frame(["<s>"]), added=PIECES),
    # No family's: what the others leave.
    "words": dict(normalizer=sequence({"type": "Strip", "strip_left": True, "strip_right": True}, {"type": "NFKC"},
                                      {"type": "Lowercase"}, key="normalizers"),
                  pre=sequence({"type": "Whitespace"}, {"type": "Digits", "individual_digits": False},
                               {"type": "Punctuation", "behavior": "MergedWithPrevious"}),
                  model={"unk_token": "[UNK]", "fuse_unk": False}, decoder=None,
                  added=[token("[UNK]"), token("[MASK]", lstrip=True), token("[SEP]", rstrip=True), token("An", False, single_word=True)]),
    "spaces": dict(normalizer={"type": "NFD"}, model={"unk_token": "<unk>", "fuse_unk": True}, added=PIECES,
                   pre=sequence(split(r"\d", "MergedWithNext"), split(r"[a-c]", "Contiguous"), split("-", "Removed", kind="String"),
                                split(r"[^x]+", "Removed", True),
                                {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True}),
                   decoder={"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True}),
    "prefix": dict(normalizer={"type": "NFKD"}, pre=sequence({"type": "WhitespaceSplit"}, byte_level(add_prefix_space=True, use_regex=True)),
                   added=[token("<|endoftext|>")]),
}

TEXTS = """The router sends each token to two of eight experts, and the load isn't even: 12345 tokens, 3.14159 s, $99.
Der Verteiler schickt jedes Wort an zwei von acht Experten; größere Geräte rechnen mehr. Straße, Füße, ÄÖÜ.
Le routeur envoie chaque jeton à deux experts sur huit ; l'été dernier, ça n'a pas marché. Œuvre, où, çà et là.
El enrutador envía cada palabra a dos de ocho expertos. ¿Por qué? ¡Porque sí! Mañana será otro día.
Маршрутизатор отправляет каждый токен двум экспертам из восьми. Ёлка, объём, 2026 год.
路由器把每个词元送到八个专家中的两个。今天天气很好，我们去公园吧！价格是１２３元。
ルーターは各トークンを八つの専門家のうち二つに送ります。カタカナとひらがな、パーティー。
라우터는 각 토큰을 여덟 전문가 중 둘에게 보냅니다. 안녕하세요, 세계! 값이 없습니다.
يرسل الموجه كل رمز إلى خبيرين من ثمانية. مرحبا بالعالم، كيف حالك؟ ١٢٣
राउटर प्रत्येक टोकन को आठ में से दो विशेषज्ञों को भेजता है। नमस्ते दुनिया १२३
เราเตอร์ส่งโทเค็นแต่ละตัวไปยังผู้เชี่ยวชาญสองในแปดคน สวัสดีชาวโลก
Ο δρομολογητής στέλνει κάθε λέξη σε δύο από τους οκτώ ειδικούς. Γειά σου Κόσμε. ΣΊΣΥΦΟΣ
Bộ định tuyến gửi mỗi từ đến hai trong tám chuyên gia. Tiếng Việt có dấu.
הנתב שולח כל אסימון לשני מומחים מתוך שמונה. שלום עולם""".split("\n")
CASES = TEXTS + [
    "", " ", "  ", "\n", "\r\n\r\n", "\t\tx", "a", " a", "a ", "a  b   c    d", "I'm, we'LL, they'Ve, 'tis 'S 'ſ x'\u017f y",
    "def f(x):\n    return x ** 2  # a comment\n\n\nclass A:\n\tpass\n", "#include <vector>\nint main() { return 0; }\r\n\r\n  }",
    "{\"a\": [1, 22, 333, 4444, 55555], \"b\": null}", "https://example.com/a?b=c&d=%20e#f", "x=1;y=-2.5e-10;z=0xFF", "😀 👨‍👩‍👧‍👦 🇩🇪 ❤️ e\u0301 \u00e9 ﬁ ½ ² Ⅷ Å Å",
    "\x00\x01\x7f\x85\xa0\u1680\u180e\u2003\u2028\u2029\u200b\u200d\ufeff\ufffd", "\u1100\u1161\u11a8 \uac00\u11a8 각", "\u0958 \u09c7\u09be \u0b92\u0bd7 a\u0300\u0316 a\u0316\u0300",
    "<|endoftext|>a<|im_start|>user\nhi<|im_end|> <think>\nx</think>", "<s>a</s> b<s> <unk>", "<|begin_of_text|>x <|eot_id|>", "x[MASK]y  [MASK]  z [SEP]   q An Anna An.",
    "<｜begin▁of▁sentence｜>x<｜User｜>y<｜end▁of▁sentence｜>", "|||IP_ADDRESS||| ||", "▁a▁ ▁▁b", "a-b--c-1-22", "xxaxbxcabcxx", "<0x41><0x0A>",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", "İstanbul ﬃ ŉ ẞ", " \n \n  x \n", "x   \n\n   y",
    "the" * 40, "専門家" * 40, "𝔘𝔫𝔦𝔠𝔬𝔡𝔢 𐐷 \U0010ffff", "1234567 ١٢٣٤ ๑๒๓ ½⅓ ①②", "don't DON'T Don’t HTTPServer camelCase snake_case"]
POOL = list("  \n\n\t\r'-_.,:;!?\"(){}[]<>|/\\=+*&^%$#@~`▁xyzabcABCstremvdl0123456789") + list(
    "éèüßøåñçğıİſœÆДаяЙёЪ中文字今天漢字あいうカタ가각힣각अआकिखاب١٢٣กขแשלΣσςΏά") + [
    "'s", "'LL", "<s>", "<|endoftext|>", "\u0301", "\u0308", "\u0327", "\u093c", "\u200d", "\u00a0", "\u2028", "\u3000", "\u180e", "😀", "👩‍👧", "ﬁ", "½", "²",
    " the", "ing", "tion", "An ", "  ", "    ", "1234", "\U00020000"]


def random_texts(count):
    source = random.Random(7)
    return ["".join(source.choices(POOL, k=source.randint(1, 40))) for _ in range(count)]


def trained(shape):
    """A tokenizer whose merges come from the docs and the texts, by way of its own normaliser and pre-tokeniser."""
    model = {key: value for key, value in shape.get("model", {}).items() if key != "ignore_merges"}
    bytes_ = shape.get("decoder", BYTE_DECODER) == BYTE_DECODER
    tokenizer = Tokenizer.from_str(json.dumps(outline(shape, {"type": "BPE", "vocab": {}, "merges": []})))
    tokenizer.model = models.BPE(**model)
    special = [t["content"] for t in shape["added"] if t["special"]]
    special += [f"<0x{byte:02X}>" for byte in range(256)] if model.get("byte_fallback") else []
    alphabet = sorted(byte_characters()) if bytes_ else []
    size = SIZE + (256 if model.get("byte_fallback") else 0)
    trainer = trainers.BpeTrainer(vocab_size=size, special_tokens=special, initial_alphabet=alphabet, limit_alphabet=300, show_progress=False,
                                  max_token_length=24)
    docs = [line for path in sorted((HERE / "../../../docs").glob("g*.md")) for line in path.read_text().splitlines(True)]
    tokenizer.train_from_iterator(docs[:400] + TEXTS * 4, trainer)
    return json.loads(tokenizer.to_str())["model"]


def byte_characters():
    from tokenizers.pre_tokenizers import ByteLevel
    return ByteLevel.alphabet()


def outline(shape, model, added=()):
    return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": list(added), "normalizer": shape.get("normalizer"),
            "pre_tokenizer": shape.get("pre"), "post_processor": shape.get("post"), "decoder": shape.get("decoder", BYTE_DECODER), "model": model}


def with_numbers(shape, model):
    """The added tokens with their numbers: that of the vocabulary, else after it."""
    out, number = [], max(model["vocab"].values()) + 1
    for entry in shape["added"]:
        known = model["vocab"].get(entry["content"])
        out.append({"id": number if known is None else known, **entry})
        number += known is None
    return out


def fill_frames(post, numbers):
    for each in (post or {}).get("processors", [post] if post else []):
        for name, entry in each.get("special_tokens", {}).items():
            entry["ids"] = [numbers[name]]


def make(name, shape):
    model = trained(shape)
    if "ignore_merges" in shape.get("model", {}):
        model["ignore_merges"] = True
        # A token that no merge makes, as Llama 3 has some.
        model["vocab"]["Ġexpertise"] = max(model["vocab"].values()) + 1
    added = with_numbers(shape, model)
    fill_frames(shape.get("post"), {entry["content"]: entry["id"] for entry in added})
    text = json.dumps(outline(shape, model, added), ensure_ascii=False, separators=(",", ":"))
    (HERE / f"{name}.json").write_text(text + "\n")
    tokenizer = Tokenizer.from_file(str(HERE / f"{name}.json"))
    cases = []
    for case in CASES + random_texts(150):
        ids = tokenizer.encode(case, add_special_tokens=False).ids
        cases.append([case, ids, tokenizer.encode(case).ids, tokenizer.decode(ids, skip_special_tokens=False)])
    (HERE / f"{name}.cases.json").write_text("[" + ",\n".join(json.dumps(c, ensure_ascii=False) for c in cases) + "]\n")
    print(f"{name}: {len(model['vocab'])} tokens, {len(model['merges'])} merges, {len(cases)} cases")


if __name__ == "__main__":
    for name, shape in SHAPES.items():
        make(name, shape)
