//! An example of a plugin: words that nobody wants to read are masked, in what is shown piece by piece and in what is
//! sent as a whole.
//!
//! It shows three things: that a filter of pieces has to hold back the last word until it is known to be over, that it
//! gives what it holds at the end, and that rendering is where a whole answer is changed.
use futures_util::future::ready;
use futures_util::{FutureExt, StreamExt};
use turnway_pipeline::{Envelope, Hook, Piece, Pieces, Plugin, Turn};

/// Letters that are held back at most while a word goes on: a longer one is no word of anybody's list.
const WORD_BYTES_MAX: usize = 256;

/// Masks words, whatever their case, with as many stars as they have letters.
#[derive(Clone, Debug)]
pub struct Profanity {
    words: Vec<String>,
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
        let lower = |word: String| word.to_lowercase();
        Self { words: words.into_iter().map(Into::into).map(lower).collect() }
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

impl Plugin for Profanity {
    fn name(&self) -> &'static str {
        "profanity"
    }

    fn adapt_stream(&self, _: &Turn, pieces: Pieces) -> Pieces {
        let filter = self.filter();
        let ended = futures_util::stream::once(ready(None));
        let pieces = pieces.map(Some).chain(ended);
        let masked = pieces.scan(filter, |filter, piece| {
            let out = match piece {
                Some(Piece::Text(text)) => vec![Piece::Text(filter.take(&text))],
                // What was held comes before it.
                Some(other) => vec![Piece::Text(filter.end()), other],
                None => vec![Piece::Text(filter.end())],
            };
            ready(Some(futures_util::stream::iter(out)))
        });
        let says_something = |piece: &Piece| ready(!matches!(piece, Piece::Text(text) if text.is_empty()));
        masked.flatten().filter(says_something).boxed()
    }

    fn render_outbound<'a>(&'a self, turn: &'a Turn) -> Hook<'a, Vec<Envelope>> {
        // What was streamed went through the filter above already, and so did the output that is kept of it. Who
        // renders at all takes the place of the built-in message.
        let mut message = turn.inbound.envelope.reply(self.masked(&turn.output));
        message.streamed = turn.streamed;
        let says_something = !turn.output.is_empty();
        ready(Ok(says_something.then_some(message).into_iter().collect())).boxed()
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
mod tests {
    use super::*;
    use turnway_pipeline::stream::whole;
    use turnway_pipeline::{Builtin, Inbound, Pipeline, Prompt};

    /// Says the message's text again, a letter at a time.
    struct Letters;

    impl Plugin for Letters {
        fn name(&self) -> &'static str {
            "letters"
        }
        fn run_model_stream<'a>(&'a self, _: &'a Turn, prompt: &'a Prompt) -> Hook<'a, Option<Pieces>> {
            let Prompt::Text(text) = prompt else { return ready(Ok(Some(whole(String::new())))).boxed() };
            let letters: Vec<Piece> = text.chars().map(|letter| Piece::Text(letter.to_string())).collect();
            ready(Ok(Some(futures_util::stream::iter(letters).boxed()))).boxed()
        }
    }

    /// Covers: TP-O1, TP-N14.
    #[tokio::test]
    async fn words_are_masked_wherever_pieces_end() {
        let pipeline =
            Pipeline::new("/").with(Builtin::new()).with(Letters).with(Profanity::new(["darn", "Mist"]));
        for (said, shown) in [
            ("a darn good day", "a **** good day"),
            ("Darn", "****"),
            ("darned, undarn", "darned, undarn"),
            ("so ein Mist! MIST", "so ein ****! ****"),
            ("größe·darn·", "größe·****·"),
        ] {
            let outcome =
                pipeline.process(Inbound::from(Envelope::text(said))).await.expect("it is answered");
            assert_eq!(outcome.turn.output, shown);
            let sent: Vec<&str> = outcome.outbound.iter().map(|it| it.content.as_str()).collect();
            assert_eq!(sent, [shown], "one message, not one more");
        }
    }
}
