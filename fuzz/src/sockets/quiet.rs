//! A socket that has these bytes to read, and takes whatever is written.
use std::io::{self, Read, Write};

pub(super) struct Quiet<'a>(pub(super) &'a [u8]);

impl Read for Quiet<'_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        self.0.read(buf)
    }
}

impl Write for Quiet<'_> {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        Ok(buf.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
