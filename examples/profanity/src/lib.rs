//! An example of a plugin: words that nobody wants to read are masked in what is said, and messages with others are
//! refused.
//!
//! It shows four things: that a filter of pieces has to hold back the last word until it is known to be over, that it
//! gives what it holds at the end, that text which never was a piece (the echo of a prompt that nobody answered) is
//! changed where it is rendered, and that a turn is refused before any model is asked.
use futures_util::future::ready;
use futures_util::{FutureExt, StreamExt};
use turnway_pipeline::{AnswerPiece, AnswerStream, HookError, HookFuture, MessageEnvelope, Plugin, Turn, TurnFailure};

/// Letters that are held back at most while a word goes on: a longer one is no word of anybody's list.
const WORD_BYTES_MAX: usize = 256;

/// Masks words, whatever their case, with as many stars as they have letters.
#[derive(Clone, Debug)]
pub struct Profanity {
    words: Vec<String>,
    refused: Vec<String>,
}

/// Text of which the last word may not be over.
#[derive(Clone, Debug)]
struct Filter {
    words: Vec<String>,
    held: String,
}

// === impl Profanity ===

impl Profanity {
    /// A filter of these words.
    pub fn new(words: impl IntoIterator<Item = impl Into<String>>) -> Self {
        Self { words: lower(words), refused: Vec::new() }
    }

    /// And a message that has one of these in it is not answered.
    #[must_use]
    pub fn refusing(mut self, words: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.refused = lower(words);
        self
    }

    fn filter(&self) -> Filter {
        Filter { words: self.words.clone(), held: String::new() }
    }

    fn masked(&self, text: &str) -> String {
        let mut filter = self.filter();
        let mut out = filter.take(text);
        out.push_str(&filter.end());
        out
    }
}

fn lower(words: impl IntoIterator<Item = impl Into<String>>) -> Vec<String> {
    words.into_iter().map(|word| word.into().to_lowercase()).collect()
}

impl Plugin for Profanity {
    fn name(&self) -> &'static str {
        "profanity"
    }

    fn admit<'a>(&'a self, turn: &'a Turn) -> HookFuture<'a, Option<HookError>> {
        let said = turn.inbound.envelope.content.to_lowercase();
        let is_refused =
            said.split(|letter: char| !letter.is_alphanumeric()).any(|word| self.refused.iter().any(|it| it == word));
        ready(Ok(is_refused.then(|| HookError::new("profanity", "not in these words")))).boxed()
    }

    fn adapt_stream(&self, _: &Turn, pieces: AnswerStream) -> AnswerStream {
        let filter = self.filter();
        let ended = futures_util::stream::once(ready(None));
        let pieces = pieces.map(Some).chain(ended);
        let masked = pieces.scan(filter, |filter, piece| {
            let out = match piece {
                Some(AnswerPiece::Text(text)) => vec![AnswerPiece::Text(filter.take(&text))],
                // What was held comes before it.
                Some(other) => vec![AnswerPiece::Text(filter.end()), other],
                None => vec![AnswerPiece::Text(filter.end())],
            };
            ready(Some(futures_util::stream::iter(out)))
        });
        let says_something = |piece: &AnswerPiece| ready(!matches!(piece, AnswerPiece::Text(text) if text.is_empty()));
        masked.flatten().filter(says_something).boxed()
    }

    fn render_outbound<'a>(&'a self, turn: &'a Turn) -> HookFuture<'a, Vec<MessageEnvelope>> {
        // Every answer came through the filter above. A prompt that stands for one did not.
        let is_echo = turn.failure == Some(TurnFailure::NoOutput) && !turn.output.is_empty();
        let masked = || MessageEnvelope { content: self.masked(&turn.output), ..turn.output_message() };
        ready(Ok(is_echo.then(masked).into_iter().collect())).boxed()
    }
}

// === impl Filter ===

impl Filter {
    /// Takes more; gives what is known to be fine.
    fn take(&mut self, more: &str) -> String {
        let mut out = String::with_capacity(self.held.len() + more.len());
        for letter in more.chars() {
            if letter.is_alphanumeric() && self.held.len() < WORD_BYTES_MAX {
                self.held.push(letter);
            } else {
                out.push_str(&self.end());
                out.push(letter);
            }
        }
        out
    }

    /// Gives the word that is over.
    fn end(&mut self) -> String {
        let word = std::mem::take(&mut self.held);
        if self.words.contains(&word.to_lowercase()) { "*".repeat(word.chars().count()) } else { word }
    }
}

#[cfg(test)]
mod tests;
