//! A socket that reads the given bytes and discards everything written to it.
use std::io::{self, Read, Write};

pub(super) struct ReadOnlySocket<'a>(pub(super) &'a [u8]);

impl Read for ReadOnlySocket<'_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        self.0.read(buf)
    }
}

impl Write for ReadOnlySocket<'_> {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        Ok(buf.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
