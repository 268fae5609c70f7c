#include "tokenizer/read_vocab.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <utility>

#include "base/utf8.h"
#include "ggml/status.h"
#include "tokenizer/bpe.h"
#include "tokenizer/spm.h"
#include "tokenizer/unigram.h"
#include "tokenizer/wordpiece.h"

namespace powerinfer {
namespace {

using ggml::Code;
using ggml::Error;
using ggml::Gguf;
using ggml::Value;

const char* const key_tokens = "tokenizer.ggml.tokens";
const char* const key_scores = "tokenizer.ggml.scores";
const char* const key_types = "tokenizer.ggml.token_type";

// A token takes at least 8 bytes in the file and about a hundred in memory. Public vocabularies
// have up to 300,000.
constexpr uint64_t kMostTokens = 1 << 22;
// Sum over the texts of special tokens; the automaton takes about 40 bytes for each byte.
constexpr uint64_t kMostSpecialBytes = 1 << 24;

[[noreturn]] void refuse(const Gguf& gguf, const char* key, const std::string& why) {
    throw Error(Code::format, gguf.path() + ": " + key + ": " + why);
}

void note(const Gguf& gguf, const char* key, const std::string& what, Vocab& vocab) {
    vocab.notes.push_back({2, gguf.path() + ": " + key + ": " + what});
}

int hex_digit(char c) {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'A' && c <= 'F') return c - 'A' + 10;
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    return -1;
}

// The byte that a text like <0x0A> names, -1 for any other text.
int named_byte(std::string_view text) {
    if (text.size() != 6 || text.substr(0, 3) != "<0x" || text[5] != '>') return -1;
    const int high = hex_digit(text[3]), low = hex_digit(text[4]);
    return high < 0 || low < 0 ? -1 : high * 16 + low;
}

std::string with_spaces(std::string_view text) {
    constexpr std::string_view kSpace = "\xE2\x96\x81";
    std::string out;
    size_t begin = 0;
    for (size_t at; (at = text.find(kSpace, begin)) != text.npos; begin = at + kSpace.size()) {
        out.append(text.substr(begin, at - begin)) += ' ';
    }
    return out.append(text.substr(begin));
}

const Value& array(const Gguf& gguf, const char* key, const Value* value) {
    if (!value) refuse(gguf, key, "is missing");
    if (value->type() != ggml::ValueType::array) refuse(gguf, key, "is not an array");
    return *value;
}

void read_texts(const Gguf& gguf, Vocab& vocab) {
    const Value& texts = array(gguf, key_tokens, gguf.find(key_tokens));
    if (!texts.is_string()) refuse(gguf, key_tokens, "is not an array of strings");
    if (texts.count() == 0) refuse(gguf, key_tokens, "is empty");
    if (texts.count() > kMostTokens)
        refuse(gguf, key_tokens,
               ggml::format("has %llu tokens, more than %llu", (unsigned long long)texts.count(),
                            (unsigned long long)kMostTokens));
    vocab.tokens.resize(texts.count());
    texts.each_string([&](uint64_t i, std::string_view text) {
        if (!is_utf8(text))
            refuse(gguf, key_tokens,
                   ggml::format("the text of token %lld is not UTF-8", (long long)i));
        vocab.tokens[i].text = text;
    });
}

// An array with an element for each token. Further elements belong to nothing, and are left out as
// in llama.cpp.
void check_count(const Gguf& gguf, const char* key, const Value& values, Vocab& vocab) {
    const std::string counts = ggml::format("has %llu elements for %d tokens",
                                            (unsigned long long)values.count(), int(vocab.size()));
    if (values.count() < vocab.tokens.size()) refuse(gguf, key, counts);
    if (values.count() > vocab.tokens.size()) note(gguf, key, counts, vocab);
}

void read_scores(const Gguf& gguf, Vocab& vocab) {
    const Value* value = gguf.find(key_scores);
    if (!value) {
        note(gguf, key_scores, "is missing: all scores are 0, which may change tokens", vocab);
        return;
    }
    const Value& scores = array(gguf, key_scores, value);
    if (!scores.is_number()) refuse(gguf, key_scores, "is not an array of numbers");
    check_count(gguf, key_scores, scores, vocab);
    for (int32_t i = 0; i < vocab.size(); i++) {
        vocab.tokens[i].score = float(scores.number(i));
        if (std::isnan(vocab.tokens[i].score))
            refuse(gguf, key_scores, ggml::format("the score of token %d is not a number", int(i)));
    }
}

void read_types(const Gguf& gguf, bool has_byte_tokens, Vocab& vocab) {
    const Value* value = gguf.find(key_types);
    if (!value) {
        // Without types, byte tokens are recognised by their texts only.
        for (Vocab::Token& token : vocab.tokens)
            token.type = has_byte_tokens && named_byte(token.text) >= 0 ? TokenType::byte
                                                                        : TokenType::normal;
        return;
    }
    const Value& types = array(gguf, key_types, value);
    if (!types.is_integer()) refuse(gguf, key_types, "is not an array of integers");
    check_count(gguf, key_types, types, vocab);
    for (int32_t i = 0; i < vocab.size(); i++) {
        const int64_t type = types.integer(i);
        if (type < 0 || type > int64_t(TokenType::byte))
            refuse(gguf, key_types,
                   ggml::format("the type %lld of token %d is not one of 0 to 6", (long long)type,
                                int(i)));
        vocab.tokens[i].type = TokenType(type);
        if (vocab.tokens[i].type == TokenType::byte && named_byte(vocab.tokens[i].text) < 0)
            refuse(gguf, key_tokens,
                   ggml::format("token %d is of type byte, but its text is not <0x00> to <0xFF>",
                                int(i)));
    }
}

// Everything that follows from texts and types. decode: converts an ordinary text to its bytes.
void index_tokens(const Gguf& gguf, std::string (*decode)(std::string_view), Vocab& vocab) {
    std::fill(std::begin(vocab.byte_ids), std::end(vocab.byte_ids), -1);
    vocab.ids = Slots(vocab.tokens.size());
    for (int32_t i = 0; i < vocab.size(); i++) {
        Vocab::Token& token = vocab.tokens[i];
        const int byte = named_byte(token.text);
        if (byte >= 0 && vocab.byte_ids[byte] < 0) vocab.byte_ids[byte] = i;
        if (token.type == TokenType::byte) {
            token.bytes.assign(1, char(byte));
        } else if (token.type == TokenType::normal || token.type == TokenType::undefined ||
                   token.type == TokenType::unused) {
            token.bytes = decode(token.text);
        } else {
            token.bytes = token.text;
        }
        if (token.text.empty()) continue;
        if (vocab.find(token.text) < 0) vocab.ids.add(VocabHash()(token.text), i);
        vocab.longest = std::max(vocab.longest, token.text.size());
        if (token.type == TokenType::control || token.type == TokenType::unknown ||
            token.type == TokenType::user_defined) {
            vocab.specials.emplace(token.text, i);
        }
    }
    std::vector<std::pair<std::string_view, int32_t>> all, user_defined;
    uint64_t bytes = 0;
    for (const auto& [text, id] : vocab.specials) {
        bytes += text.size();
        all.emplace_back(text, id);
        if (vocab.tokens[size_t(id)].type == TokenType::user_defined)
            user_defined.emplace_back(text, id);
    }
    if (bytes > kMostSpecialBytes)
        refuse(gguf, key_tokens,
               ggml::format("holds special tokens of more than %llu bytes",
                            (unsigned long long)kMostSpecialBytes));
    vocab.in_text = SpecialTokens(std::move(all));
    vocab.in_plain_text = SpecialTokens(std::move(user_defined));
}

// An id outside the vocabulary is that of no token: some converters store -1, as 4294967295. As in
// llama.cpp the key then counts as missing.
int32_t read_id(const Gguf& gguf, const char* key, Vocab& vocab, int32_t missing) {
    // The family's default may be outside a small vocabulary; then there is no such token.
    if (missing >= vocab.size()) missing = -1;
    const int64_t id = gguf.integer(key, INT64_MIN, INT64_MAX, missing);
    if (id == missing || (id >= 0 && id < vocab.size())) return int32_t(id);
    note(gguf, key,
         ggml::format("there is no token %lld, so the default is used: %d", (long long)id,
                      int(missing)),
         vocab);
    return missing;
}

// The ids of an array of our own, which a file need not have.
std::vector<int32_t> read_ids(const Gguf& gguf, const char* key, const Vocab& vocab) {
    std::vector<int32_t> ids;
    const Value* value = gguf.find(key);
    if (!value) return ids;
    const Value& found = array(gguf, key, value);
    if (!found.is_integer()) refuse(gguf, key, "is not an array of integers");
    for (uint64_t i = 0; i < found.count(); i++) {
        const int64_t id = found.integer(i);
        if (id < 0 || id >= vocab.size())
            refuse(gguf, key, ggml::format("there is no token %lld", (long long)id));
        ids.push_back(int32_t(id));
    }
    return ids;
}

void read_flags(const Gguf& gguf, Vocab& vocab) {
    for (const auto& [key, flag] :
         {std::pair("powerinfer.tokenizer.lstrip", Vocab::lstrip),
          std::pair("powerinfer.tokenizer.rstrip", Vocab::rstrip),
          std::pair("powerinfer.tokenizer.single_word", Vocab::single_word)}) {
        for (const int32_t id : read_ids(gguf, key, vocab)) vocab.flags[id] |= flag;
    }
}

void read_ends(const Gguf& gguf, Vocab& vocab) {
    // Files rarely list all tokens that end a turn, so tokens with these texts are added. They must
    // be control tokens, because some are ordinary markup elsewhere ("</s>" in Gemma's vocabulary).
    // For texts of the form <|...|> user-defined tokens count too.
    static const char* const texts[] = {
        "</s>",
        "<eos>",
        "<EOT>",
        "_<EOT>",
        "< EOT >",
        "_< EOT >",
        "[EOT]",
        "[EOS]",
        "<|endoftext|>",
        "<|end_of_text|>",
        "<|im_end|>",
        "<|eot_id|>",
        "<|eom_id|>",
        "<|eot|>",  // of Llama 4 and Muse Glimmer, whose <|eom|> is followed by more
        "<|end|>",
        "<|return|>",
        "<|call|>",
        "<|calls|>",
        "<|flush|>",
        "<|END_OF_TURN_TOKEN|>",
        "<end_of_turn>",
        "<turn|>",
        "<end_of_utterance>",
        "<|endofturn|>",
        "[|endofturn|]",
        "<|role_end|>",
        "<|assistant_end|>",
        "</assistant>",
        "[e~[",
        "<\uFF5Chy_eos:opensource\uFF5C>",
        "<|fim_pad|>",  // these and the next ones: what follows is no part of the middle
        "<fim-pad>",
        "<fim_pad>",
        "<|fim_repo|>",
        "<|repo_name|>",
        "<|file_sep|>",
        "<\uFF5Cend\u2581of\u2581sentence\uFF5C>",
    };
    std::vector<int32_t>& ends = vocab.ends;
    ends.push_back(vocab.eos);
    ends.push_back(read_id(gguf, "tokenizer.ggml.eot_token_id", vocab, -1));
    ends.push_back(read_id(gguf, "tokenizer.ggml.eom_token_id", vocab, -1));
    for (const char* const key :
         {"tokenizer.ggml.fim_pad_token_id", "tokenizer.ggml.fim_rep_token_id",
          "tokenizer.ggml.fim_sep_token_id"})
        ends.push_back(read_id(gguf, key, vocab, -1));
    for (const int32_t id : read_ids(gguf, "powerinfer.tokenizer.ends", vocab)) ends.push_back(id);
    for (const std::string_view text : texts) {
        const auto found = vocab.specials.find(text);
        if (found == vocab.specials.end()) continue;
        const TokenType type = vocab.tokens[found->second].type;
        const bool bars = text.substr(0, 2) == "<|";
        if (type == TokenType::control || (type == TokenType::user_defined && bars))
            ends.push_back(found->second);
    }
    std::sort(ends.begin(), ends.end());
    ends.erase(std::unique(ends.begin(), ends.end()), ends.end());
    if (ends.front() < 0) ends.erase(ends.begin());
}

// Is a text put into NFC first? Where the file does not say so, llama.cpp's names of rules tell it
// of those that are only used with it.
bool read_composes(const Gguf& gguf) {
    const char* const key = "powerinfer.tokenizer.normalizer";
    const std::string form(gguf.string(key, ""));
    if (form == "nfc") return true;
    if (form == "none") return false;
    if (!form.empty())
        throw Error(Code::unsupported, gguf.path() + ": " + key + ": '" + form +
                                           "' is not supported; 'nfc' and 'none' are");
    const std::string_view pre = gguf.string("tokenizer.ggml.pre", "");
    return pre == "qwen2" || pre == "qwen35" || pre == "deepseek-r1-qwen";
}

// Keys that one kind of vocabulary obeys, in the file of another: ours change the tokens and are
// refused, those of other engines are ignored there, too.
void check_keys_of_others(const Gguf& gguf, bool of_bytes, bool unigram, Vocab& vocab) {
    if (!of_bytes && gguf.boolean(key_ignore_merges, false))
        throw Error(Code::unsupported, gguf.path() + ": " + key_ignore_merges +
                                           " is only supported for the tokenizer 'gpt2'");
    const char* const why = "is not obeyed: only the tokenizer 't5' does so";
    const char* const key_join = "tokenizer.ggml.remove_extra_whitespaces";
    if (!unigram && gguf.boolean(key_join, false)) note(gguf, key_join, why, vocab);
    const char* const key_charsmap = "tokenizer.ggml.precompiled_charsmap";
    if (!unigram && gguf.find(key_charsmap)) note(gguf, key_charsmap, why, vocab);
}

}  // namespace

Vocab read_vocab(const Gguf& gguf) {
    Vocab vocab;
    const std::string family(gguf.string("tokenizer.ggml.model"));
    const bool of_bytes = family == "gpt2", unigram = family == "t5", wordpiece = family == "bert";
    const bool bpe = of_bytes || family == "gemma4";
    if (!bpe && !unigram && !wordpiece && family != "llama")
        throw Error(Code::unsupported, gguf.path() + ": the tokenizer '" + family +
                                           "' (tokenizer.ggml.model) is not supported; 'llama', "
                                           "'gpt2', 'gemma4', 't5' and 'bert' are");

    read_texts(gguf, vocab);
    // BPE and WordPiece need no scores, but some files have them.
    if ((!bpe && !wordpiece) || gguf.find(key_scores)) read_scores(gguf, vocab);
    read_types(gguf, !of_bytes && !wordpiece, vocab);
    index_tokens(gguf, of_bytes ? decode_bpe_text : with_spaces, vocab);
    read_flags(gguf, vocab);
    check_keys_of_others(gguf, of_bytes, unigram, vocab);

    // Default ids of the family.
    int32_t bos = 1, eos = 2, unk = 0;
    bool add_bos = true;
    if (unigram) {
        bos = -1;
        eos = 1;
        unk = 2;
        add_bos = false;
    }
    if (wordpiece) {  // of BERT
        bos = read_id(gguf, "tokenizer.ggml.cls_token_id", vocab, 101);
        eos = read_id(gguf, "tokenizer.ggml.seperator_token_id", vocab, 102);
        unk = 100;
    }
    if (bpe && !of_bytes) {
        bos = 2;
        eos = 1;
        unk = 3;
    } else if (bpe) {
        const PreTokenizer& pre = read_pretokenizer(gguf);
        bos = pre.has_bos ? 11 : -1;
        eos = 11;
        unk = -1;
        add_bos = pre.add_bos;
    }
    vocab.bos = read_id(gguf, "tokenizer.ggml.bos_token_id", vocab, bos);
    vocab.eos = read_id(gguf, "tokenizer.ggml.eos_token_id", vocab, eos);
    vocab.unk = read_id(gguf, "tokenizer.ggml.unknown_token_id", vocab, unk);
    vocab.add_bos = gguf.boolean("tokenizer.ggml.add_bos_token", add_bos) && vocab.bos >= 0;
    vocab.add_eos =
        gguf.boolean("tokenizer.ggml.add_eos_token", unigram || wordpiece) && vocab.eos >= 0;
    vocab.composes = read_composes(gguf);
    vocab.encode = of_bytes    ? encode_bpe
                   : bpe       ? encode_character_bpe
                   : unigram   ? encode_unigram
                   : wordpiece ? encode_wordpiece
                               : encode_spm;
    if (unigram) vocab.unigram = read_unigram(gguf, vocab);
    if (wordpiece) vocab.wordpiece = read_wordpiece(gguf, vocab);
    vocab.add_space_prefix = false;
    if (bpe) {
        vocab.bpe = read_bpe(gguf, vocab, of_bytes);
        const std::vector<int32_t> newline = vocab.tokenize("\n", false);
        if (!newline.empty()) vocab.nl = newline[0];
    } else {
        vocab.nl = vocab.byte_ids[uint8_t('\n')];
        if (vocab.nl < 0) vocab.nl = vocab.find("\n");
    }
    vocab.add_space_prefix = gguf.boolean("tokenizer.ggml.add_space_prefix", family == "llama");
    read_ends(gguf, vocab);
    // Whoever fills a gap in a text reads these: one that is no token is noted here.
    for (const char* const part : {"fim_pre", "fim_suf", "fim_mid", "prefix", "suffix", "middle"})
        read_id(gguf, (std::string("tokenizer.ggml.") + part + "_token_id").c_str(), vocab, -1);
    return vocab;
}

}  // namespace powerinfer
