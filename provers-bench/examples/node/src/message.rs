//! A message between peers: a number, a body, and a checksum of both.

use anyhow::{Context, ensure};
use crc32fast::Hasher;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

/// Length of the body, checksum, number: 4, 4 and 8 bytes.
const HEADER_BYTES: usize = 16;
/// A longer length is a corrupt one. Without this limit, it would become a huge request to the allocator.
const MAX_BODY_BYTES: usize = 1 << 20;

/// A message, as it travels.
#[derive(Debug, PartialEq)]
pub(crate) struct Message {
    pub(crate) number: u64,
    pub(crate) body: Vec<u8>,
    checksum: u32,
}

impl Message {
    pub(crate) fn new(number: u64, body: Vec<u8>) -> Self {
        let checksum = checksum(number, &body);
        Self { number, body, checksum }
    }

    /// The answer that says that this message arrived as it was sent.
    pub(crate) fn receipt(&self) -> Self {
        Self::new(self.number, self.checksum.to_le_bytes().into())
    }

    pub(crate) async fn write_to(&self, stream: &mut (impl AsyncWrite + Unpin)) -> anyhow::Result<()> {
        stream.write_all(&self.encode()).await.context("cannot send a message")
    }

    pub(crate) async fn read_from(stream: &mut (impl AsyncRead + Unpin)) -> anyhow::Result<Self> {
        let mut header = [0; HEADER_BYTES];
        stream.read_exact(&mut header).await.context("the connection ended")?;
        let [length, checksum] = [0, 4].map(|at| u32::from_le_bytes(array(&header, at)));
        let number = u64::from_le_bytes(array(&header, 8));
        let length = length as usize;
        ensure!(length <= MAX_BODY_BYTES, "message {number} is corrupt: its length is {length}");
        let mut body = vec![0; length];
        stream.read_exact(&mut body).await.with_context(|| format!("the connection ended in message {number}"))?;
        let message = Self::new(number, body);
        let found = message.checksum;
        ensure!(found == checksum, "message {number} is corrupt: its checksum is {found:08x}, not {checksum:08x}");
        Ok(message)
    }

    fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(HEADER_BYTES + self.body.len());
        bytes.extend((self.body.len() as u32).to_le_bytes());
        bytes.extend(self.checksum.to_le_bytes());
        bytes.extend(self.number.to_le_bytes());
        bytes.extend(&self.body);
        bytes
    }
}

fn checksum(number: u64, body: &[u8]) -> u32 {
    let mut hasher = Hasher::new();
    hasher.update(&number.to_le_bytes());
    hasher.update(body);
    hasher.finalize()
}

/// The `N` bytes of a header from `at`.
fn array<const N: usize>(header: &[u8; HEADER_BYTES], at: usize) -> [u8; N] {
    std::array::from_fn(|index| header[at + index])
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::runtime::Builder;

    fn read(mut bytes: &[u8]) -> anyhow::Result<Message> {
        Builder::new_current_thread().build()?.block_on(Message::read_from(&mut bytes))
    }

    /// Only a checksum shows that an allocator handed out the memory of a message twice.
    #[test]
    fn a_flipped_byte_is_detected_wherever_it_is() {
        let sent = Message::new(7, (0..100).collect());
        let bytes = sent.encode();
        assert_eq!(read(&bytes).unwrap(), sent);
        for at in 0..bytes.len() {
            let mut flipped = bytes.clone();
            flipped[at] ^= 0x10;
            let error = read(&flipped).unwrap_err().to_string();
            assert!(error.contains("is corrupt") || error.contains("ended in message"), "byte {at}: {error}");
        }
        assert!(read(&bytes[..50]).unwrap_err().to_string().contains("ended in message 7"));
        assert!(read(&[]).unwrap_err().to_string().contains("ended"));
    }

    #[test]
    fn a_receipt_is_of_one_message_only() {
        let receipt = |number, body: &[u8]| Message::new(number, body.into()).receipt();
        assert_eq!(receipt(1, b"a"), receipt(1, b"a"));
        assert_ne!(receipt(1, b"a"), receipt(1, b"b"));
        assert_ne!(receipt(1, b"a"), receipt(2, b"a"));
    }
}
