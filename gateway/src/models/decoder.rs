//! Reads a copy of an answer that may be compressed: decodes it piece by piece for the reader, never for the caller.
use bytes::Bytes;
use flate2::write::{GzDecoder, ZlibDecoder};
use http::{HeaderMap, header};
use std::io::{self, Write};
use turnway_core::limits;
use turnway_wire::model::AnswerReader;

/// The copy of an answer beside its relay.
pub(super) enum AnswerCopy {
    Plain(AnswerReader),
    Gzip(Box<GzDecoder<DecodedSink>>),
    Deflate(Box<ZlibDecoder<DecodedSink>>),
    /// An encoding that is not read, or bytes that cannot be decoded.
    Opaque,
}

/// The end of a decoder: passes decoded bytes to the reader.
pub(super) struct DecodedSink {
    reader: AnswerReader,
    /// Decoded bytes that may still come: a small piece can decode to a thousand times its size.
    bytes_left: usize,
    /// Kept for its memory.
    relay: Vec<Bytes>,
}

// === impl AnswerCopy ===

impl AnswerCopy {
    /// Creates the copy of an answer with these headers.
    pub(super) fn new(headers: &HeaderMap, reader: AnswerReader) -> Self {
        let sink = |reader| DecodedSink { reader, bytes_left: limits::MODEL_DECODED_BYTES_MAX, relay: Vec::new() };
        match headers.get(header::CONTENT_ENCODING).map(|value| value.as_bytes().to_ascii_lowercase()).as_deref() {
            None | Some(b"identity") => Self::Plain(reader),
            Some(b"gzip" | b"x-gzip") => Self::Gzip(Box::new(GzDecoder::new(sink(reader)))),
            Some(b"deflate") => Self::Deflate(Box::new(ZlibDecoder::new(sink(reader)))),
            Some(_) => Self::Opaque,
        }
    }

    /// Returns whether the relayed bytes are the ones that the reader sees.
    pub(super) fn is_plain(&self) -> bool {
        matches!(self, Self::Plain(_))
    }

    /// Takes the next bytes of the answer, and appends to `relay` those that go to the caller now.
    pub(super) fn push(&mut self, bytes: &Bytes, relay: &mut Vec<Bytes>) {
        let decoded = match self {
            Self::Plain(reader) => return reader.push(bytes, relay),
            // Without the flush, decoded bytes would wait for the next piece.
            Self::Gzip(decoder) => decoder.write_all(bytes).and_then(|()| decoder.flush()),
            Self::Deflate(decoder) => decoder.write_all(bytes).and_then(|()| decoder.flush()),
            Self::Opaque => Ok(()),
        };
        relay.push(bytes.clone());
        if let Err(error) = decoded {
            tracing::debug!(%error, "an answer of a model cannot be decoded; its usage stays unknown");
            *self = Self::Opaque;
        }
    }

    /// Ends the answer. Returns bytes that were held back from the caller.
    pub(super) fn finish(&mut self) -> Option<Bytes> {
        match self {
            Self::Plain(reader) => reader.finish(),
            Self::Gzip(decoder) => {
                decoder.get_mut().reader.finish();
                None
            }
            Self::Deflate(decoder) => {
                decoder.get_mut().reader.finish();
                None
            }
            Self::Opaque => None,
        }
    }

    /// Returns the reader, unless the answer cannot be read.
    pub(super) fn reader(&self) -> Option<&AnswerReader> {
        match self {
            Self::Plain(reader) => Some(reader),
            Self::Gzip(decoder) => Some(&decoder.get_ref().reader),
            Self::Deflate(decoder) => Some(&decoder.get_ref().reader),
            Self::Opaque => None,
        }
    }
}

// === impl DecodedSink ===

impl Write for DecodedSink {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.bytes_left = self.bytes_left.checked_sub(bytes.len()).ok_or(io::ErrorKind::FileTooLarge)?;
        self.reader.push(&Bytes::copy_from_slice(bytes), &mut self.relay);
        self.relay.clear();
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use flate2::Compression;
    use flate2::write::{GzEncoder, ZlibEncoder};
    use http::HeaderValue;
    use turnway_wire::model::{AnswerEnd, CallFormat};

    const STREAM: &[u8] =
        b"data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"a\"},\"finish_reason\":\"stop\"}],\
        \"usage\":{\"prompt_tokens\":3,\"completion_tokens\":1}}\n\ndata: [DONE]\n\n";

    fn copy(encoding: &'static str) -> AnswerCopy {
        let headers = HeaderMap::from_iter([(header::CONTENT_ENCODING, HeaderValue::from_static(encoding))]);
        AnswerCopy::new(&headers, AnswerReader::stream(CallFormat::ChatCompletions, false))
    }

    /// Covers: PR-3.
    #[test]
    fn compressed_answer_is_relayed_untouched_and_read() {
        let mut gzip = GzEncoder::new(Vec::new(), Compression::default());
        gzip.write_all(STREAM).expect("encoded");
        let mut deflate = ZlibEncoder::new(Vec::new(), Compression::default());
        deflate.write_all(STREAM).expect("encoded");
        for (encoding, bytes) in
            [("gzip", gzip.finish().expect("ended")), ("deflate", deflate.finish().expect("ended"))]
        {
            for step in [1, 7, bytes.len()] {
                let mut copy = copy(encoding);
                let mut relay = Vec::new();
                for piece in bytes.chunks(step) {
                    copy.push(&Bytes::copy_from_slice(piece), &mut relay);
                }
                assert_eq!(copy.finish(), None);
                assert_eq!(relay.concat(), bytes, "{encoding}");
                let reader = copy.reader().expect("it can be read");
                assert_eq!((reader.end(), reader.usage().input), (AnswerEnd::Whole, Some(3)), "{encoding} by {step}");
            }
        }
    }

    /// Covers: PR-3, S-11.
    #[test]
    fn answer_that_cannot_be_decoded_is_relayed_all_the_same() {
        let mut bomb = GzEncoder::new(Vec::new(), Compression::best());
        bomb.write_all(&vec![b' '; limits::MODEL_DECODED_BYTES_MAX + 64 * 1024]).expect("encoded");
        for (encoding, bytes) in [
            ("gzip", b"this is longer than the head of gzip and is none".to_vec()),
            ("br", STREAM.to_vec()),
            ("gzip", bomb.finish().expect("ended")),
        ] {
            let mut copy = copy(encoding);
            let mut relay = Vec::new();
            copy.push(&Bytes::from(bytes.clone()), &mut relay);
            assert!(copy.reader().is_none() && relay.concat() == bytes, "{encoding}");
        }
    }
}
