//! Headers that lie, and small files that hold hours.

use std::time::{Duration, Instant};

use zonos_audio::decode::{DecodeLimits, Problem, decode_bytes, decode_file, probe_bytes};

use super::write::Wav;
use super::{bytes, fixture};

fn crc8(bytes: &[u8]) -> u8 {
    bytes.iter().fold(0, |mut crc, &b| {
        crc ^= b;
        for _ in 0..8 {
            crc = crc << 1 ^ if crc & 0x80 != 0 { 0x07 } else { 0 };
        }
        crc
    })
}

fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |mut crc, &b| {
        crc ^= u16::from(b) << 8;
        for _ in 0..8 {
            crc = crc << 1 ^ if crc & 0x8000 != 0 { 0x8005 } else { 0 };
        }
        crc
    })
}

/// FLAC of `seconds` of silence at 8 kHz, in 13 bytes for every eight seconds.
fn silent_flac(seconds: u64, claimed: u64) -> Vec<u8> {
    const BLOCK: u64 = 65_535;
    let total = claimed * 8_000;
    let mut file = b"fLaC\x80\0\0\x22\xff\xff\xff\xff\0\0\0\0\0\0".to_vec();
    // 20 bits rate, 3 bits channels - 1, 5 bits depth - 1, 36 bits length.
    file.extend((8_000_u64 << 44 | 15 << 36 | total).to_be_bytes());
    file.extend([0; 16]);
    for frame in 0..(seconds * 8_000).div_ceil(BLOCK) {
        let mut bytes = vec![0xff, 0xf8, 0x74, 0x08];
        // The number, as UTF-8 spells characters.
        let number = char::from_u32(frame as u32).unwrap();
        bytes.extend(number.encode_utf8(&mut [0; 4]).as_bytes());
        bytes.extend((BLOCK as u16 - 1).to_be_bytes());
        bytes.push(crc8(&bytes));
        // A constant of zero.
        bytes.extend([0, 0, 0]);
        bytes.extend(crc16(&bytes).to_be_bytes());
        file.extend(bytes);
    }
    file
}

#[test]
fn hours_in_a_small_file_stop_early() {
    let hours = 10;
    let limits = DecodeLimits {
        max_seconds: 600.0,
        ..DecodeLimits::default()
    };
    // Said in the header, and not said.
    for claimed in [hours * 3600, 0] {
        let file = silent_flac(hours * 3600, claimed);
        assert!(file.len() < 100_000);
        let began = Instant::now();
        let error = decode_bytes("hours.flac", file, &limits).unwrap_err();
        assert!(
            matches!(error.problem(), Problem::TooLong { .. }),
            "{error}"
        );
        assert!(error.to_string().contains("longer than 600 s"), "{error}");
        assert!(began.elapsed() < Duration::from_secs(5));
    }
    // What fits is read, to the sample.
    let decoded = decode_bytes("minute.flac", silent_flac(65, 0), &limits).unwrap();
    assert_eq!(decoded.channels[0].len() as u64, 65_535 * 8);
}

/// Lengths in headers are claims: what is there is read, and the difference said.
#[test]
fn hours_in_a_header_alone() {
    let flac = bytes("claim.flac", silent_flac(65, 36_000)).unwrap();
    assert_eq!(flac.channels[0].len() as u64, 65_535 * 8);

    // The frame count of an MP3's tag, behind its name and flags.
    let mut mp3 = std::fs::read(fixture("decode/mp3_vbr_stereo_48000.mp3")).unwrap();
    let tag = mp3.windows(4).position(|w| w == b"Xing" || w == b"Info");
    let count = tag.unwrap() + 8;
    mp3[count..count + 4].fill(0xff);
    let mp3 = bytes("claim.mp3", mp3).unwrap();
    // Its padding is cut no more.
    let frames = mp3.info.frames.unwrap();
    assert!((48_000..52_000).contains(&frames), "{frames}");

    // The duration of an MP4's edit, behind its name, version and count; and in the header of the file.
    let mut mp4 = std::fs::read(fixture("decode/aac_mono_44100.m4a")).unwrap();
    let edit = mp4.windows(4).position(|w| w == b"elst").unwrap() + 12;
    mp4[edit..edit + 4].copy_from_slice(&0x7fff_ffff_u32.to_be_bytes());
    let mp4 = bytes("claim.m4a", mp4).unwrap();
    let frames = mp4.info.frames.unwrap();
    assert!((44_100..48_000).contains(&frames), "{frames}");

    for (name, decoded) in [("flac", flac), ("mp3", mp3), ("mp4", mp4)] {
        let warnings = decoded.warnings.join("; ");
        assert!(warnings.contains("cut short"), "{name}: {warnings:?}");
    }
}

/// A length that goes with the size of the file is believed at once.
#[test]
fn long_files_are_refused_before_they_are_decoded() {
    let limits = DecodeLimits {
        max_seconds: 1.0,
        ..DecodeLimits::default()
    };
    let wav = Wav::pcm16(16_000, 1, &[0.0; 16_001]).bytes();
    let error = decode_bytes("long.wav", wav, &limits).unwrap_err();
    assert!(
        matches!(error.problem(), Problem::TooLong { .. }),
        "{error}"
    );
}

/// Hundreds of thousands of tracks and of blocks, each of which looks for its track.
#[test]
fn tracks_without_number_are_refused_quickly() {
    const MANY: usize = 300_000;
    let unknown = [0x01, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff];
    let mut file = b"\x1a\x45\xdf\xa3\x8b\x42\x82\x88matroska".to_vec();
    for id in [[0x18, 0x53, 0x80, 0x67], [0x16, 0x54, 0xae, 0x6b]] {
        file.extend(id);
        file.extend(unknown);
    }
    file.extend([0xae, 0x80].repeat(MANY));
    file.extend([0x1f, 0x43, 0xb6, 0x75]);
    file.extend(unknown);
    file.extend([0xa3, 0x81, 0x85].repeat(MANY));
    let began = Instant::now();
    let text = bytes("many.mka", file).unwrap_err().to_string();
    assert!(text.contains("tracks"), "{text}");
    assert!(began.elapsed() < Duration::from_secs(5));
}

#[test]
fn decoded_bytes_are_bounded() {
    let limits = DecodeLimits {
        max_decoded_bytes: 4 * 8_000 * 10,
        ..DecodeLimits::default()
    };
    let error = decode_bytes("seconds.flac", silent_flac(60, 0), &limits).unwrap_err();
    assert!(
        matches!(error.problem(), Problem::TooLarge { limit: 320_000 }),
        "{error}"
    );
    let wav = Wav::pcm16(16_000, 2, &vec![0.0; 2 * 50_000]);
    assert!(decode_bytes("stereo.wav", wav.bytes(), &limits).is_err());
}

#[test]
fn encoded_bytes_are_bounded() {
    let limits = DecodeLimits {
        max_encoded_bytes: 4096,
        ..DecodeLimits::default()
    };
    let path = fixture("decode/pcm16_mono_22050.wav");
    let error = decode_file(&path, &limits).unwrap_err();
    assert!(
        matches!(error.problem(), Problem::TooManyBytes { limit: 4096 }),
        "{error}"
    );
    let error = decode_bytes("x", std::fs::read(path).unwrap(), &limits).unwrap_err();
    assert!(
        matches!(error.problem(), Problem::TooManyBytes { limit: 4096 }),
        "{error}"
    );
}

#[test]
fn impossible_headers() {
    let base = Wav::pcm16(16_000, 1, &[0.5; 100]);
    let refused = |wav: Wav, says: &str| {
        for result in [
            bytes("w", wav.bytes()).map(|d| d.info),
            probe_bytes("w", wav.bytes()),
        ] {
            let text = result.unwrap_err().to_string();
            assert!(text.contains(says), "{text}");
        }
    };
    refused(
        Wav {
            channels: 0,
            ..base.clone()
        },
        "0 channels",
    );
    refused(
        Wav {
            channels: 65,
            ..base.clone()
        },
        "implausible channel count 65",
    );
    refused(
        Wav {
            rate: 0,
            ..base.clone()
        },
        "sample rate 0",
    );
    refused(
        Wav {
            rate: 655_350,
            ..base.clone()
        },
        "implausible sample rate 655350 Hz",
    );
    refused(
        Wav {
            rate: 10,
            ..base.clone()
        },
        "implausible sample rate 10 Hz",
    );
    refused(
        Wav {
            bits: 64,
            ..base.clone()
        },
        "unsupported bit depth 64",
    );
    refused(
        Wav {
            tag: 0x55,
            ..base.clone()
        },
        "MP3 (codec tag 0x0055) in WAV",
    );
    // The same in FLAC: 655,350 Hz is the most its header holds.
    let mut flac = silent_flac(1, 1);
    let fields = 655_350_u64 << 44 | 15 << 36 | 8_000;
    flac[18..26].copy_from_slice(&fields.to_be_bytes());
    assert!(bytes("rate.flac", flac).is_err());
    // Ten hours claimed over nothing.
    let mut claim = base.clone();
    claim.data_size = Some(0x7000_0000);
    assert_eq!(
        bytes("claim.wav", claim.bytes()).unwrap().channels[0].len(),
        100
    );
}

#[test]
fn folders_and_missing_files() {
    let missing = decode_file("no/such/file.wav", &DecodeLimits::default()).unwrap_err();
    assert!(
        missing
            .to_string()
            .starts_with("no/such/file.wav: cannot read"),
        "{missing}"
    );
    let folder = decode_file(fixture("decode"), &DecodeLimits::default()).unwrap_err();
    assert!(folder.to_string().contains("is a directory"), "{folder}");
}
