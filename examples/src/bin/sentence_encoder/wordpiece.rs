//! BERT's tokenizer (uncased WordPiece): text to token ids.
//!
//! In: the vocabulary, one token per line; sentences. Out: ids and a mask, padded to the longest
//! sentence. The example's reference has the ids of the `tokenizers` library.

use std::collections::HashMap;

use hypatia::{Error, Tensor};
use unicode_normalization::UnicodeNormalization;
use unicode_normalization::char::is_combining_mark;

/// The maximum number of tokens of a sentence, including the special tokens at both ends.
const MAX_TOKENS: usize = 128;
/// Longer words are unknown.
const MAX_WORD: usize = 100;

/// A tokenizer.
pub struct WordPiece {
    ids: HashMap<String, i64>,
    unknown: i64,
    first: i64,
    last: i64,
}

impl WordPiece {
    /// Builds a tokenizer from the text of a `vocab.txt`.
    pub fn new(vocabulary: &str) -> Result<WordPiece, String> {
        let ids: HashMap<String, i64> = vocabulary.lines().zip(0..).map(|(t, i)| (t.to_string(), i)).collect();
        let special = |name: &str| ids.get(name).copied().ok_or_else(|| format!("there is no token {name}"));
        let (unknown, first, last) = (special("[UNK]")?, special("[CLS]")?, special("[SEP]")?);
        Ok(WordPiece { ids, unknown, first, last })
    }

    /// Ids and mask of sentences, both `[sentences, tokens]`.
    pub fn batch(&self, sentences: &[&str]) -> Result<(Tensor, Tensor), Error> {
        let rows: Vec<Vec<i64>> = sentences.iter().map(|s| self.encode(s)).collect();
        let longest = rows.iter().map(Vec::len).max().unwrap_or(0);
        let padded = |row: &Vec<i64>, i: usize| row.get(i).copied();
        let all = || rows.iter().flat_map(|r| (0..longest).map(move |i| padded(r, i)));
        let ids: Vec<i64> = all().map(|id| id.unwrap_or(0)).collect();
        let mask: Vec<f32> = all().map(|id| f32::from(id.is_some())).collect();
        let shape = [rows.len(), longest];
        Tensor::from_slice(&shape, &ids)
            .zip(Tensor::from_slice(&shape, &mask))
            .ok_or_else(|| Error::Input("the sentences do not fit into memory".into()))
    }

    /// The ids of one sentence, including the special tokens at both ends.
    pub fn encode(&self, sentence: &str) -> Vec<i64> {
        let mut out = vec![self.first];
        for word in words(sentence) {
            self.pieces(&word, &mut out);
        }
        out.truncate(MAX_TOKENS - 1);
        out.push(self.last);
        out
    }

    /// The longest pieces from the left; a word that cannot be split completely is unknown as a
    /// whole.
    fn pieces(&self, word: &str, out: &mut Vec<i64>) {
        let begun = out.len();
        let mut rest = word;
        let mut prefix = "";
        while !rest.is_empty() {
            let ends = rest.char_indices().map(|(i, c)| i + c.len_utf8()).rev();
            let found =
                ends.filter_map(|end| self.ids.get(&format!("{prefix}{}", &rest[..end])).map(|id| (end, *id))).next();
            let Some((end, id)) = found.filter(|_| word.chars().count() <= MAX_WORD) else {
                out.truncate(begun);
                out.push(self.unknown);
                return;
            };
            out.push(id);
            rest = &rest[end..];
            prefix = "##";
        }
    }
}

/// Words in lower case without accents; punctuation and ideographs are separate words.
fn words(text: &str) -> Vec<String> {
    let clean = text.chars().filter(|c| *c != '\0' && *c != '\u{fffd}' && (c.is_whitespace() || !c.is_control()));
    let plain = clean.nfd().filter(|c| !is_combining_mark(*c)).flat_map(char::to_lowercase);
    let mut out: Vec<String> = Vec::new();
    let mut joins = false;
    for c in plain {
        let alone = is_punctuation(c) || is_ideograph(c);
        if !c.is_whitespace() {
            match out.last_mut() {
                Some(word) if joins && !alone => word.push(c),
                _ => out.push(c.to_string()),
            }
        }
        joins = !c.is_whitespace() && !alone;
    }
    out
}

fn is_punctuation(c: char) -> bool {
    // General punctuation, and marks of CJK text; ASCII symbols count too.
    c.is_ascii_punctuation()
        || matches!(c, '\u{a1}' | '\u{a7}' | '\u{ab}' | '\u{b6}' | '\u{b7}' | '\u{bb}' | '\u{bf}')
        || matches!(c, '\u{2010}'..='\u{2027}' | '\u{2030}'..='\u{205e}')
        || matches!(c, '\u{3001}'..='\u{3003}' | '\u{3008}'..='\u{3011}')
}

fn is_ideograph(c: char) -> bool {
    matches!(c, '\u{4e00}'..='\u{9fff}' | '\u{3400}'..='\u{4dbf}' | '\u{f900}'..='\u{faff}' | '\u{20000}'..='\u{2fa1f}')
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn tokenizer() -> WordPiece {
        let tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "un", "##aff", "##able", "cafe", ",", "a", "##ff"];
        WordPiece::new(&tokens.join("\n")).unwrap()
    }

    #[test]
    fn the_longest_pieces_win() {
        let t = tokenizer();
        assert_eq!(t.encode("Unaffable, CAFÉ"), [2, 4, 5, 6, 8, 7, 3]);
        // A word with an unknown rest keeps none of its pieces.
        assert_eq!(t.encode("unx a"), [2, 1, 9, 3]);
        assert_eq!(t.encode(""), [2, 3]);
        assert_eq!(t.encode(&"a ".repeat(500)).len(), MAX_TOKENS);
        assert_eq!(t.encode(&"a".repeat(MAX_WORD + 1)), [2, 1, 3]);
    }

    #[test]
    fn sentences_are_padded() {
        let (ids, mask) = tokenizer().batch(&["a", "a,a"]).unwrap();
        assert_eq!(ids.shape(), [2, 5]);
        assert_eq!(ids.to_f64(), [2.0, 9.0, 3.0, 0.0, 0.0, 2.0, 9.0, 8.0, 9.0, 3.0]);
        assert_eq!(mask.to_f64(), [1.0, 1.0, 1.0, 0.0, 0.0, 1.0, 1.0, 1.0, 1.0, 1.0]);
    }

    #[test]
    fn a_vocabulary_without_its_ends_is_an_error() {
        assert!(WordPiece::new("a\nb").is_err_and(|e| e.contains("[UNK]")));
    }
}
