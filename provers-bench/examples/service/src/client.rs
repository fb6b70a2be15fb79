//! A small HTTP client over loopback, for the tests and the soak: one request on each connection.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// The answer of the service.
#[derive(Debug)]
pub struct Reply {
    pub status: u16,
    pub head: String,
    pub body: String,
}

impl Reply {
    /// The body as JSON; null if it is none.
    pub fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.body).unwrap_or_default()
    }
}

/// Sends a request. Dropping the connection cancels it.
///
/// # Errors
/// The connection's.
pub fn send(address: SocketAddr, method: &str, path: &str, body: &str) -> io::Result<TcpStream> {
    let mut stream = TcpStream::connect_timeout(&address, Duration::from_secs(10))?;
    stream.set_read_timeout(Some(Duration::from_secs(600)))?;
    let length = body.len();
    let request = format!(
        "{method} {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n{body}"
    );
    stream.write_all(request.as_bytes())?;
    Ok(stream)
}

/// Reads the answer.
///
/// # Errors
/// The connection's, or an answer that is not HTTP.
pub fn receive(stream: TcpStream) -> io::Result<Reply> {
    let broken = |what: &str| io::Error::new(io::ErrorKind::InvalidData, what.to_owned());
    let mut reader = BufReader::new(stream);
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        if reader.read_line(&mut head)? == 0 {
            return Err(broken("the answer ends in its head"));
        }
    }
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok());
    let status = status.ok_or_else(|| broken("the answer has no status"))?;
    let mut body = String::new();
    reader.read_to_string(&mut body)?;
    let expected = header(&head, "content-length").and_then(|length| length.parse().ok());
    if expected.is_some_and(|length: usize| length != body.len()) {
        return Err(broken("the answer ends in its body"));
    }
    Ok(Reply { status, head, body })
}

/// Sends a request and reads its answer.
///
/// # Errors
/// As [`send`] and [`receive`].
pub fn request(address: SocketAddr, method: &str, path: &str, body: &str) -> io::Result<Reply> {
    receive(send(address, method, path, body)?)
}

/// The value of a header.
pub fn header<'a>(head: &'a str, name: &str) -> Option<&'a str> {
    head.lines().find_map(|line| {
        let (key, value) = line.split_once(':')?;
        key.eq_ignore_ascii_case(name).then(|| value.trim())
    })
}

/// The sum of a metric over its labels, in the text of `/metrics`. `labels` must occur in the line.
pub fn metric(text: &str, name: &str, labels: &str) -> Option<f64> {
    let mut values = text.lines().filter_map(|line| {
        let rest = line.strip_prefix(name)?;
        let is_whole_name = rest.starts_with(['{', ' ']);
        (is_whole_name && rest.contains(labels)).then(|| rest.rsplit(' ').next()?.parse::<f64>().ok())?
    });
    let first = values.next()?;
    Some(first + values.sum::<f64>())
}
