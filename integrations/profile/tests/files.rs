//! Tests that third-party readers find the snapshot's values in the files.

#[path = "../../test_support.rs"]
mod support;

use std::fs;
use std::hint::black_box;
use std::io::Read;
use std::process::Command;
use std::sync::MutexGuard;

use pprof::protos::{Message, Profile as Proto};
use zk_alloc::{ZkAllocator, profile};
use zk_alloc_profile::{Profile, Value};

#[global_allocator]
static ALLOC: ZkAllocator = ZkAllocator::resident();

const MIB: usize = 1 << 20;

/// Starts sampling, and allocates 8 MiB at a known site.
fn sampling() -> (MutexGuard<'static, ()>, Vec<u8>) {
    let turn = support::alone();
    profile::start(profile::MEAN_BYTES);
    (turn, zk_alloc::phase(hold_eight))
}

#[inline(never)]
fn hold_eight() -> Vec<u8> {
    black_box(vec![1u8; 8 * MIB])
}

#[inline(never)]
fn hold_three() -> Vec<u8> {
    black_box(vec![2u8; 3 * MIB])
}

fn read(gzipped: &[u8]) -> Proto {
    let mut bytes = Vec::new();
    flate2::read::GzDecoder::new(gzipped).read_to_end(&mut bytes).expect("gzip");
    Proto::decode(&*bytes).expect("a message of profile.proto")
}

fn text(proto: &Proto, index: i64) -> &str {
    &proto.string_table[usize::try_from(index).unwrap()]
}

/// Returns the sum of `value` over the samples whose stacks contain `function`.
fn sum(proto: &Proto, value: Value, function: &str) -> i64 {
    let index = proto.sample_type.iter().position(|kind| text(proto, kind.ty) == value.name()).expect("a sample type");
    let functions = proto.function.iter().filter(|known| text(proto, known.name).ends_with(function));
    let functions: Vec<_> = functions.map(|known| known.id).collect();
    let is_within = |location: &u64| {
        let location = proto.location.iter().find(|known| known.id == *location).expect("a location");
        location.line.iter().any(|line| functions.contains(&line.function_id))
    };
    let samples = proto.sample.iter().filter(|sample| sample.location_id.iter().any(is_within));
    samples.map(|sample| sample.value[index]).sum()
}

#[test]
fn the_pprof_crate_reads_the_file() {
    let (_one, _kept) = sampling();
    drop(hold_three());
    let profile = Profile::new(&profile::snapshot());
    let proto = read(&profile.pprof().unwrap());

    let (three, eight) = ((3 * MIB) as i64, (8 * MIB) as i64);
    assert_eq!(sum(&proto, Value::AllocSpace, "hold_eight"), eight);
    assert_eq!(sum(&proto, Value::AllocObjects, "hold_eight"), 1);
    assert_eq!(sum(&proto, Value::InuseSpace, "hold_eight"), eight);
    assert_eq!(sum(&proto, Value::PeakSpace, "hold_three"), three);
    assert_eq!((sum(&proto, Value::InuseSpace, "hold_three"), sum(&proto, Value::InuseObjects, "hold_three")), (0, 0));
    for (index, value) in Value::ALL.into_iter().enumerate() {
        let total: i64 = proto.sample.iter().map(|sample| sample.value[index]).sum();
        assert_eq!(total as u64, profile.total(value), "{}", value.name());
    }
    assert_eq!(text(&proto, proto.default_sample_type), "peak_space");
    assert_eq!(proto.period, profile::MEAN_BYTES as i64);
    assert_eq!(text(&proto, 0), "");
    assert!(proto.sample.iter().flat_map(|sample| &sample.label).any(|label| text(&proto, label.str) == "arena"));
}

/// `go tool pprof` shortens names if functions have a system name. Without Go, the test only checks that functions have none.
#[test]
fn go_tool_pprof_shows_whole_names() {
    let (_one, _kept) = sampling();
    let profile = Profile::new(&profile::snapshot()).pprof().unwrap();
    assert!(read(&profile).function.iter().all(|function| function.system_name == 0));
    if Command::new("go").arg("version").output().is_err() {
        println!("skipped: go is not installed");
        return;
    }
    let path = std::env::temp_dir().join(format!("zk-alloc-profile-{}.pb.gz", std::process::id()));
    fs::write(&path, profile).unwrap();
    let output = Command::new("go").args(["tool", "pprof", "-top", "-cum"]).arg(&path).output().unwrap();
    fs::remove_file(&path).unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success() && text.contains("Type: peak_space"), "{output:?}");
    // Test functions are called through `call_once`.
    assert!(text.contains("as core::ops::function::FnOnce<()>>::call_once") && text.contains("hold_eight"), "{text}");
    assert!(!text.lines().any(|line| line.ends_with(" 0x0")), "{text}");
}

/// If these calls were not skipped, a table by function would attribute every byte to the allocator, and every flame graph would begin
/// with thirteen runtime frames. The call of `phase` stays, because the program itself makes it.
#[test]
fn the_calls_of_the_allocator_and_those_that_start_a_thread_are_skipped_and_no_others() {
    let (_one, _kept) = sampling();
    let folded = Profile::new(&profile::snapshot()).folded(Value::InuseSpace);
    let line = folded.lines().find(|line| line.contains("hold_eight")).expect("the site");
    assert!(line.ends_with(&format!(" {}", 8 * MIB)), "{line}");
    let innermost = line.rsplit(';').next().unwrap();
    assert!(innermost.contains("hold_eight") || innermost.contains("alloc::vec::"), "{line}");
    assert!(!line.contains("clone3") && !line.contains("start_thread"), "{line}");
    let places = ["calls_of_the_allocator", "phase", "hold_eight"].map(|name| line.find(name).expect(name));
    assert!(places.is_sorted(), "the outermost comes first: {line}");
}

#[test]
fn file_of_another_format_is_refused() {
    let raw = std::env::temp_dir().join(format!("zk-alloc-profile-{}.raw", std::process::id()));
    let right = "zk-alloc-profile 1\nmean_bytes 5\nmissed 2\nsite 1 2 3 4 5 6 7 : 1f 2e\nmaps\n";
    let read = |text: &str| {
        fs::write(&raw, text).unwrap();
        Profile::read(&raw).map(|profile| (profile.missed(), profile.folded(Value::FreshSpace)))
    };
    assert_eq!(read(right).unwrap(), (2, "0x2e;0x1f 7\n".into()));
    for (part, wrong) in [("maps", "map"), ("profile 1", "profile 2"), ("7 :", "7 8 :"), ("2e", "2g")] {
        let error = read(&right.replace(part, wrong)).unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::InvalidData, "{wrong}");
    }
    fs::remove_file(&raw).unwrap();
}

#[test]
fn every_figure_has_its_files() {
    let (_one, _kept) = sampling();
    let dir = std::env::temp_dir().join(format!("zk-alloc-profile-{}", std::process::id()));
    zk_alloc_profile::write(&dir).unwrap();
    let is_site = |text: &str| text.contains("hold_eight");
    for value in [Value::AllocSpace, Value::InuseSpace, Value::PeakSpace] {
        let read = |extension: &str| fs::read_to_string(dir.join(value.name()).with_extension(extension)).unwrap();
        let (svg, folded) = (read("svg"), read("folded"));
        assert!(is_site(&svg) && svg.contains("</svg>"), "{svg}");
        assert!(is_site(&folded) && folded.lines().all(|line| line.rsplit_once(' ').unwrap().1.parse::<u64>().is_ok()));
    }
    assert!(!read(&fs::read(dir.join("profile.pb.gz")).unwrap()).sample.is_empty());
    fs::remove_dir_all(&dir).unwrap();
}
