//! A request for a proof: what may be asked for.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::failure::Failure;

/// A statement that the service can prove.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// Poseidon2 permutations of random states, eight to a row.
    Poseidon2,
    /// Keccak-f permutations of random states, 24 rows to each.
    Keccak,
}

impl Kind {
    pub const ALL: [Self; 2] = [Self::Poseidon2, Self::Keccak];

    pub fn name(self) -> &'static str {
        match self {
            Self::Poseidon2 => "poseidon2",
            Self::Keccak => "keccak",
        }
    }
}

/// A kind and the base-2 logarithm of its rows. Proofs of one size need the same memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Size {
    pub kind: Kind,
    pub log_rows: u32,
}

impl Size {
    /// One Keccak-f permutation takes 24 rows.
    pub const LEAST_LOG_ROWS: u32 = 5;
    /// A proof of this size takes about 12 GB.
    pub const MOST_LOG_ROWS: u32 = 20;
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} 2^{}", self.kind.name(), self.log_rows)
    }
}

/// A defect to play, for tests (`--allow-faults`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Fault {
    /// The prover panics while its trace is alive.
    Panic,
}

/// A request that can be proved.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Request {
    #[serde(flatten)]
    pub size: Size,
    /// The statement is derived from it.
    pub seed: u64,
    pub fault: Option<Fault>,
}

/// A request as it comes, before its values are known to be usable.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Raw {
    kind: String,
    log_rows: i64,
    #[serde(default)]
    seed: u64,
    fault: Option<String>,
}

impl Request {
    /// Reads the body of a request.
    pub fn parse(body: &[u8], allow_faults: bool) -> Result<Self, Failure> {
        let raw: Raw = serde_json::from_slice(body).map_err(|error| {
            let text = format!("the body is no request ({error}); {EXAMPLE}");
            if error.is_data() { Failure::NotAllowed(text) } else { Failure::NotJson(text) }
        })?;
        let kind = Kind::ALL.into_iter().find(|kind| kind.name() == raw.kind).ok_or_else(|| {
            let names = Kind::ALL.map(Kind::name).join(" or ");
            Failure::NotAllowed(format!("there is no kind {:?}: use {names}", raw.kind))
        })?;
        let (least, most) = (Size::LEAST_LOG_ROWS, Size::MOST_LOG_ROWS);
        let log_rows = u32::try_from(raw.log_rows).ok().filter(|log_rows| (least..=most).contains(log_rows));
        let log_rows = log_rows.ok_or_else(|| {
            Failure::NotAllowed(format!("log_rows {} is out of range: use {least} to {most}", raw.log_rows))
        })?;
        let fault = match raw.fault.as_deref() {
            None => None,
            Some("panic") if allow_faults => Some(Fault::Panic),
            Some("panic") => {
                let text = "faults are for tests: start the service with --allow-faults to play one";
                return Err(Failure::NotAllowed(text.to_owned()));
            }
            Some(other) => return Err(Failure::NotAllowed(format!("there is no fault {other:?}: use \"panic\""))),
        };
        Ok(Self { size: Size { kind, log_rows }, seed: raw.seed, fault })
    }
}

const EXAMPLE: &str = r#"send JSON such as {"kind": "poseidon2", "log_rows": 12, "seed": 1}"#;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_good_request_is_read_and_survives_the_pipe_to_a_worker() {
        let request = Request::parse(br#"{"kind":"keccak","log_rows":10,"fault":"panic"}"#, true).unwrap();
        assert_eq!(request.size.to_string(), "keccak 2^10");
        assert_eq!((request.seed, request.fault), (0, Some(Fault::Panic)));
        let line = serde_json::to_string(&request).unwrap();
        assert_eq!(serde_json::from_str::<Request>(&line).unwrap(), request);
    }

    #[test]
    fn a_bad_request_is_refused_with_its_value_and_the_allowed_ones() {
        for (body, status, expected) in [
            ("{", 400, "send JSON such as"),
            (r#"{"kind":"keccak"}"#, 422, "missing field `log_rows`"),
            (r#"{"kind":"keccak","log_rows":10,"rows":3}"#, 422, "unknown field `rows`"),
            (r#"{"kind":"sha3","log_rows":10}"#, 422, "there is no kind \"sha3\": use poseidon2 or keccak"),
            (r#"{"kind":"keccak","log_rows":40}"#, 422, "log_rows 40 is out of range: use 5 to 20"),
            (r#"{"kind":"keccak","log_rows":-1}"#, 422, "log_rows -1 is out of range: use 5 to 20"),
            (r#"{"kind":"keccak","log_rows":10,"fault":"panic"}"#, 422, "--allow-faults"),
        ] {
            let failure = Request::parse(body.as_bytes(), false).unwrap_err();
            assert_eq!(failure.status().as_u16(), status, "{body}");
            assert!(failure.to_string().contains(expected), "{body}: {failure}");
        }
    }
}
