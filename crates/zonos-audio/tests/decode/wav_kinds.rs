//! WAV headers of every kind (field report H09), and what is short, silent or empty (H11).

use super::bytes;
use super::write::{Wav, tone};

fn interleave(left: &[f32], right: &[f32]) -> Vec<f32> {
    left.iter().zip(right).flat_map(|(&l, &r)| [l, r]).collect()
}

#[test]
fn rates_and_channels() {
    for rate in [8_000, 16_000, 22_050, 44_100, 48_000, 96_000] {
        let clip = tone(rate, 0.5);
        let mono = bytes("mono", Wav::pcm16(rate, 1, &clip).bytes()).unwrap();
        assert_eq!((mono.info.sample_rate, mono.info.channels), (rate, 1));
        assert_eq!(mono.channels[0].len(), clip.len());
        let equal = Wav::pcm16(rate, 2, &interleave(&clip, &clip));
        let equal = bytes("equal", equal.bytes()).unwrap();
        // Not twice as long, and the same sound.
        assert_eq!(equal.to_mono(), mono.to_mono());
        let silent = vec![0.0; clip.len()];
        for sides in [(&clip, &silent), (&silent, &clip)] {
            let one_sided = Wav::pcm16(rate, 2, &interleave(sides.0, sides.1));
            let half = bytes("one-sided", one_sided.bytes()).unwrap().to_mono();
            for (half, whole) in half.samples().iter().zip(mono.channels[0].iter()) {
                assert_eq!(*half, whole / 2.0);
            }
        }
    }
}

#[test]
fn bit_depths() {
    let clip = tone(16_000, 0.25);
    let depth = |tag: u16, bits: u16, data: Vec<u8>, extensible: bool| Wav {
        tag,
        bits,
        data,
        extensible,
        ..Wav::default()
    };
    let int = |x: f32, bits: u32| (f64::from(x) * 2_f64.powi(bits as i32 - 1)).round() as i64;
    let ints = |bits: u32| -> Vec<u8> {
        clip.iter()
            .flat_map(|&x| int(x, bits).to_le_bytes()[..bits as usize / 8].to_vec())
            .collect()
    };
    for extensible in [false, true] {
        let eight = clip.iter().map(|&x| (int(x, 8) + 128) as u8).collect();
        for (wav, step) in [
            (depth(1, 8, eight, extensible), 1.0 / 128.0),
            (depth(1, 16, ints(16), extensible), 1.0 / 32_768.0),
            (depth(1, 24, ints(24), extensible), 1.0 / 8_388_608.0),
            (depth(1, 32, ints(32), extensible), 1e-7),
            (
                depth(
                    3,
                    32,
                    clip.iter().flat_map(|x| x.to_le_bytes()).collect(),
                    extensible,
                ),
                0.0,
            ),
            (
                depth(
                    3,
                    64,
                    clip.iter()
                        .flat_map(|x| f64::from(*x).to_le_bytes())
                        .collect(),
                    extensible,
                ),
                0.0,
            ),
        ] {
            let decoded = bytes("depth", wav.bytes()).unwrap();
            assert_eq!(decoded.info.bits_per_sample, Some(u32::from(wav.bits)));
            assert_eq!(decoded.channels[0].len(), clip.len());
            for (found, wanted) in decoded.channels[0].iter().zip(&clip) {
                assert!((found - wanted).abs() <= 0.51 * step, "{} bits", wav.bits);
            }
        }
    }
}

#[test]
fn short_and_silent_files_decode() {
    for frames in [1, 2, 160] {
        let decoded = bytes("short", Wav::pcm16(16_000, 1, &vec![0.25; frames]).bytes()).unwrap();
        assert_eq!(decoded.channels, [vec![0.25; frames]]);
    }
    let silent = bytes("silent", Wav::pcm16(16_000, 1, &[0.0; 80_000]).bytes()).unwrap();
    assert_eq!(silent.to_mono().peak(), 0.0);
    // -55 dBFS and no gate.
    let quiet: Vec<f32> = tone(16_000, 1.0).iter().map(|x| x * 0.002).collect();
    let decoded = bytes("quiet", Wav::pcm16(16_000, 1, &quiet).bytes()).unwrap();
    assert!(decoded.to_mono().rms() > 0.0);
    let empty = bytes("empty", Wav::pcm16(16_000, 1, &[]).bytes()).unwrap_err();
    assert!(empty.to_string().contains("contains no samples"));
}

#[test]
fn streams_of_unknown_length() {
    let clip = tone(16_000, 0.25);
    let wav = Wav::pcm16(16_000, 1, &clip);
    for (riff, data) in [
        (u32::MAX, u32::MAX),
        (0, 0),
        (36, 0),
        (0, u32::MAX),
        (u32::MAX, 0),
    ] {
        let stream = Wav {
            riff_size: Some(riff),
            data_size: Some(data),
            ..wav.clone()
        };
        let decoded = bytes("stream", stream.bytes()).unwrap();
        assert_eq!(decoded.channels[0].len(), clip.len(), "{riff} {data}");
        assert!(decoded.warnings.is_empty());
    }
    // An empty data chunk before another chunk is empty.
    let mut empty = Wav::default().bytes();
    empty.extend(b"LIST\x04\0\0\0INFO");
    assert!(
        bytes("empty", empty)
            .unwrap_err()
            .to_string()
            .contains("no samples")
    );
    // Chunks after the samples are no samples.
    let mut tail = wav.bytes();
    tail.extend(b"LIST\x04\0\0\0INFO");
    assert_eq!(bytes("tail", tail).unwrap().channels[0].len(), clip.len());
}

#[test]
fn nan_and_short_data() {
    let floats = |samples: &[f32]| Wav {
        tag: 3,
        bits: 32,
        data: samples.iter().flat_map(|x| x.to_le_bytes()).collect(),
        ..Wav::default()
    };
    for bad in [f32::NAN, f32::INFINITY] {
        let error = bytes("nan", floats(&[0.0, 0.0, bad]).bytes()).unwrap_err();
        assert!(error.to_string().contains("NaN or infinite"), "{error}");
    }
    // Ten seconds claimed, one there.
    let second = Wav {
        data_size: Some(320_000),
        ..Wav::pcm16(16_000, 1, &tone(16_000, 1.0))
    };
    let decoded = bytes("short", second.bytes()).unwrap();
    assert_eq!(decoded.channels[0].len(), 16_000);
    assert!(decoded.warnings[0].contains("16000 of 160000 samples"));
}

#[test]
fn long_files_use_the_64_bit_size() {
    let clip = tone(16_000, 0.1);
    let plain = Wav::pcm16(16_000, 1, &clip).bytes();
    let mut long = b"RF64\xff\xff\xff\xffWAVEds64\x1c\0\0\0".to_vec();
    long.extend((plain.len() as u64 + 28).to_le_bytes());
    long.extend((2 * clip.len() as u64).to_le_bytes());
    long.extend((clip.len() as u64).to_le_bytes());
    long.extend([0; 4]);
    long.extend(&plain[12..40]);
    long.extend([0xff; 4]);
    long.extend(&plain[44..]);
    // What follows the samples does not belong to them.
    long.extend(b"LIST\x04\0\0\0INFO");
    let decoded = bytes("long", long).unwrap();
    assert_eq!(decoded.channels[0].len(), clip.len());
}
