//! The files that `bb` reads. They are made once for each size, in a separate folder.

use std::ffi::OsString;
use std::fs::{self, Permissions};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, iter};

use anyhow::{Context, bail, ensure};
use ark_bn254::{Fq, Fr, G1Projective, G2Projective};
use ark_ec::scalar_mul::ScalarMul;
use ark_ec::{CurveGroup, PrimeGroup};
use ark_ff::{BigInteger, PrimeField};

use crate::FOLDER;

/// The secret from which our reference string is derived. It is public, so anyone could forge proofs over this string.
const SECRET: u64 = 0x5eed;
/// The first bytes of the ceremony's point in G2, as embedded in the `bb` binary: the real part of x, big-endian.
const CEREMONY_POINT: [u8; 8] = [0x01, 0x18, 0xc4, 0xd5, 0xb8, 0x37, 0xbc, 0xc2];
/// A script that verifies the proof in its folder. Renames the proof first, so a later run that writes no proof cannot pass with this one.
const VERIFY: &str = "#!/bin/sh
cd \"${0%/*}\" && mv proof verified && ./verifier verify -c . -k vk -p verified -i public_inputs
";

/// The files that `bb` reads for a circuit of 2^`size` gates.
pub(crate) struct Inputs {
    pub(crate) size: u32,
    folder: PathBuf,
}

impl Inputs {
    /// Makes the files unless they already exist.
    pub(crate) fn prepare(bb: &Path, size: u32) -> anyhow::Result<Self> {
        let inputs = Self { size, folder: cache()?.join(size.to_string()) };
        // The key is made last, so if it exists, so do the other files.
        if !inputs.path("vk").is_file() {
            eprintln!("prove-bench: preparing bb-{size}: circuit, witness, reference string and verification key");
            fs::create_dir_all(inputs.path("key"))?;
            inputs.make(bb)?;
        }
        let _ = fs::remove_file(inputs.program());
        let _ = fs::remove_file(inputs.path("proof"));
        symlink(bb, inputs.program())?;
        Ok(inputs)
    }

    fn make(&self, bb: &Path) -> anyhow::Result<()> {
        // A round takes 113 gates, and the lookup tables of XOR take up to 4,096. Dividing by 114 leaves a margin.
        let rounds = ((1 << self.size) - 4096) / 114;
        let script = Path::new(FOLDER).join("inputs.mjs");
        succeed(Command::new("node").arg(script).arg(&self.folder).arg(rounds.to_string()))?;
        self.write_verifier(bb, &self.write_reference_string()?)?;
        let key = self.path("key/vk");
        let options = [("-c", ""), ("-b", "circuit.json"), ("-o", "key")];
        succeed(Command::new(bb).arg("write_vk").args(self.options(&options)))?;
        // The key begins with a field element: log2 of the number of gates.
        let log_gates = fs::read(&key)?.get(31).copied().unwrap_or_default();
        ensure!(u32::from(log_gates) == self.size, "the circuit has 2^{log_gates} gates");
        Ok(fs::rename(key, self.path("vk"))?)
    }

    /// Writes as many powers of [`SECRET`] in G1 as the circuit has gates. Returns the secret in G2.
    fn write_reference_string(&self) -> anyhow::Result<Vec<u8>> {
        let secret = Fr::from(SECRET);
        let powers = iter::successors(Some(Fr::from(1_u64)), |power| Some(*power * secret));
        let powers: Vec<_> = powers.take(1 << self.size).collect();
        let bytes = |coordinate: Fq| coordinate.into_bigint().to_bytes_be();
        let points = G1Projective::generator().batch_mul(&powers);
        let string: Vec<u8> = points.into_iter().flat_map(|point| [point.x, point.y]).flat_map(bytes).collect();
        fs::write(self.path("bn254_g1.dat"), string)?;
        let point = (G2Projective::generator() * secret).into_affine();
        Ok([point.x.c0, point.x.c1, point.y.c0, point.y.c1].into_iter().flat_map(bytes).collect())
    }

    /// Writes a copy of `bb` that verifies against our reference string. `bb` itself contains the ceremony's point in G2, so the pairing
    /// check would reject every proof.
    fn write_verifier(&self, bb: &Path, point: &[u8]) -> anyhow::Result<()> {
        let mut program = fs::read(bb)?;
        let mut found = (0..program.len()).filter(|&at| program[at..].starts_with(&CEREMONY_POINT));
        let (Some(at), None) = (found.next(), found.next()) else {
            bail!("{} does not contain the ceremony's point exactly once", bb.display())
        };
        program[at..at + point.len()].copy_from_slice(point);
        for (file, bytes) in [("verifier", &program[..]), ("verify", VERIFY.as_bytes())] {
            fs::write(self.path(file), bytes)?;
            fs::set_permissions(self.path(file), Permissions::from_mode(0o755))?;
        }
        Ok(())
    }

    /// Returns the path of the file with the public inputs, which each run writes next to its proof, always with the same content.
    pub(crate) fn public_inputs(&self) -> PathBuf {
        from_here(self.path("public_inputs"))
    }

    /// Returns the command that makes the proof.
    pub(crate) fn command(&self) -> impl Iterator<Item = OsString> {
        let options = [("-c", ""), ("-b", "circuit.json"), ("-w", "witness.gz"), ("-k", "vk"), ("-o", "")];
        [from_here(self.program()).into(), "prove".into()].into_iter().chain(self.options(&options))
    }

    /// Returns the shell command line that verifies the proof.
    pub(crate) fn verification(&self) -> String {
        format!("'{}'", from_here(self.path("verify")).to_string_lossy().replace('\'', r"'\''"))
    }

    /// Returns each option followed by the path of its file.
    fn options(&self, options: &[(&str, &str)]) -> Vec<OsString> {
        options.iter().flat_map(|(option, file)| [option.into(), from_here(self.path(file)).into()]).collect()
    }

    /// Returns the path of this size's link to `bb`. `exec` names a row after the command's file, so each size gets its own row.
    fn program(&self) -> PathBuf {
        self.path(&format!("bb-{}", self.size))
    }

    fn path(&self, file: &str) -> PathBuf {
        if file.is_empty() { self.folder.clone() } else { self.folder.join(file) }
    }
}

/// Returns the path relative to the current folder if it is inside that folder. Tables show the command, and absolute paths differ between
/// machines.
fn from_here(path: PathBuf) -> PathBuf {
    let here = env::current_dir().unwrap_or_default();
    path.strip_prefix(here).map(Path::to_owned).unwrap_or(path)
}

/// Returns the folder of all inputs, in this package's target folder. Its name is a hash of the code and of the npm packages that make the
/// inputs, so the inputs are made again when either changes.
fn cache() -> anyhow::Result<PathBuf> {
    let mut hasher = DefaultHasher::new();
    [include_str!("inputs.rs"), include_str!("../inputs.mjs")].hash(&mut hasher);
    // npm writes this file when it installs a package.
    fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("node_modules/.package-lock.json")).ok().hash(&mut hasher);
    let program = env::current_exe()?;
    let target = program.ancestors().nth(2).context("this program lies in no target folder")?;
    Ok(target.join("inputs").join(format!("{:016x}", hasher.finish())))
}

/// Runs a program that must succeed, hiding its output.
pub(crate) fn succeed(command: &mut Command) -> anyhow::Result<()> {
    let program = command.get_program().to_string_lossy().into_owned();
    let output = command.output().with_context(|| format!("cannot run {program}"))?;
    ensure!(output.status.success(), "{program}: {}: {}", output.status, String::from_utf8_lossy(&output.stderr));
    Ok(())
}
