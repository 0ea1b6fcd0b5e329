//! The bytes of a file. Engines give files a length in advance, so zeros at the end take no memory.

/// Bytes, and zeros behind them up to a length.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(crate) struct Content {
    /// Ends with another byte than zero.
    bytes: Vec<u8>,
    length: usize,
}

impl Content {
    pub(crate) fn new(bytes: Vec<u8>) -> Self {
        let length = bytes.len();
        let mut content = Self { bytes, length };
        content.trim();
        content
    }

    pub(crate) fn len(&self) -> usize {
        self.length
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Everything but zeros at the end.
    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.bytes
    }

    pub(crate) fn resize(&mut self, length: usize) {
        self.length = length;
        self.bytes.truncate(length);
        self.trim();
    }

    pub(crate) fn write(&mut self, at: usize, new: &[u8]) {
        let end = at + new.len();
        self.length = self.length.max(end);
        if self.bytes.len() < end {
            self.bytes.resize(end, 0);
        }
        self.bytes[at..end].copy_from_slice(new);
        self.trim();
    }

    /// Some of its bytes.
    pub(crate) fn read(&self, at: usize, bytes: usize) -> Vec<u8> {
        let kept = self.bytes.get(at..).unwrap_or_default();
        let mut read = kept[..kept.len().min(bytes)].to_vec();
        read.resize(bytes, 0);
        read
    }

    pub(crate) fn write_to(&self, path: &std::path::Path) -> std::io::Result<()> {
        std::fs::write(path, &self.bytes)?;
        let file = std::fs::File::options().write(true).open(path)?;
        file.set_len(u64::try_from(self.length).expect("it was a file's"))
    }

    fn trim(&mut self) {
        let end = self.bytes.iter().rposition(|byte| *byte != 0);
        self.bytes.truncate(end.map_or(0, |end| end + 1));
    }
}
