//! Every format that is written, read back.

use std::path::Path;

use zonos_audio::Waveform;
use zonos_audio::decode::{DecodeLimits, Decoded, decode_file};
use zonos_audio::encode::{AudioFormat, EncodeError, PcmScale, encode_file};
use zonos_audio::wav::pcm16;

fn tone(frames: usize, rate: u32, hertz: f64) -> Vec<f32> {
    (0..frames)
        .map(|i| {
            let t = i as f64 / f64::from(rate);
            (0.7 * (std::f64::consts::TAU * hertz * t).sin() * (1.0 - 0.3 * t).max(0.1)) as f32
        })
        .collect()
}

/// Noise that uses every 16-bit value's neighbourhood, both ends included.
fn noise(frames: usize) -> Vec<f32> {
    let mut state = 1_u32;
    let mut out: Vec<f32> = (0..frames)
        .map(|_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            state.cast_signed() as f32 / 2_147_483_648.0
        })
        .collect();
    for (x, edge) in out.iter_mut().zip([1.0, -1.0, 0.0, 1.5, -1.5]) {
        *x = edge;
    }
    out
}

fn read(path: &Path) -> Decoded {
    let decoded = decode_file(path, &DecodeLimits::default()).unwrap();
    assert_eq!(decoded.warnings, [""; 0], "{}", path.display());
    decoded
}

fn correlation(a: &[f32], b: &[f32]) -> f64 {
    let dot = |x: &[f32], y: &[f32]| -> f64 {
        x.iter()
            .zip(y)
            .map(|(a, b)| f64::from(*a) * f64::from(*b))
            .sum()
    };
    dot(a, b) / (dot(a, a) * dot(b, b)).sqrt()
}

#[test]
fn lossless_formats_are_exact() {
    let dir = tempfile::tempdir().unwrap();
    for frames in [1, 2, 15, 16, 31, 32, 33, 63, 64, 4095, 4096, 4097, 20_000] {
        for count in [1, 2, 3] {
            let channels: Vec<_> = (0..count)
                .map(|c| noise(frames + c)[c..].to_vec())
                .collect();
            for (format, ending) in [(AudioFormat::Flac, "flac"), (AudioFormat::WavPcm16, "wav")] {
                let path = dir.path().join(format!("a.{ending}"));
                assert_eq!(AudioFormat::from_path(&path), Some(format));
                for rate in [8_000, 44_100, 44_160] {
                    for scale in [PcmScale::Symmetric, PcmScale::Full] {
                        encode_file(&path, &channels, rate, format, scale).unwrap();
                        let decoded = read(&path);
                        assert_eq!(decoded.info.sample_rate, rate);
                        assert_eq!(
                            decoded.info.frames,
                            Some(frames as u64),
                            "{format} {frames}"
                        );
                        for (found, wanted) in decoded.channels.iter().zip(&channels) {
                            let wanted: Vec<f32> = wanted
                                .iter()
                                .map(|&x| f32::from(scale.pcm16(x)) / 32_768.0)
                                .collect();
                            assert!(
                                found == &wanted,
                                "{format}, {frames} frames, {count} channels"
                            );
                        }
                    }
                }
            }
            let path = dir.path().join("float.wav");
            let format = AudioFormat::WavF32;
            encode_file(&path, &channels, 44_100, format, PcmScale::Symmetric).unwrap();
            assert!(read(&path).channels == channels);
        }
    }
}

#[test]
fn flac_states_its_length() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.flac");
    Waveform::new(noise(12_345), 44_100)
        .save_as(&path, AudioFormat::Flac)
        .unwrap();
    let bytes = std::fs::read(&path).unwrap();
    // 36 bits at the end of the stream's description.
    let field = u64::from_be_bytes(bytes[18..26].try_into().unwrap());
    assert_eq!(field & 0xf_ffff_ffff, 12_345);
    assert_eq!(field >> 44, 44_100);
}

#[test]
fn sixteen_bit_files_pass_unchanged() {
    let dir = tempfile::tempdir().unwrap();
    let (wav, flac) = (dir.path().join("a.wav"), dir.path().join("a.flac"));
    // All values there are.
    let all: Vec<f32> = (i16::MIN..=i16::MAX)
        .map(|v| f32::from(v) / 32_768.0)
        .collect();
    for (from, to) in [(&wav, &flac), (&flac, &wav)] {
        let format = AudioFormat::from_path(from).unwrap();
        encode_file(from, &[&all], 44_100, format, PcmScale::Full).unwrap();
        let read_back = read(from);
        assert!(read_back.channels == [all.clone()]);
        let format = AudioFormat::from_path(to).unwrap();
        encode_file(to, &read_back.channels, 44_100, format, PcmScale::Full).unwrap();
        assert!(read(to).channels == read_back.channels);
    }
}

#[test]
fn mono_wav_is_what_it_always_was() {
    let dir = tempfile::tempdir().unwrap();
    let (a, b) = (dir.path().join("a.wav"), dir.path().join("b.wav"));
    let sound = Waveform::new(noise(1000), 44_100);
    sound.save_wav(&a).unwrap();
    sound.save_as(&b, AudioFormat::WavPcm16).unwrap();
    assert_eq!(std::fs::read(a).unwrap(), std::fs::read(b).unwrap());
}

#[test]
fn opus_keeps_its_length() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.opus");
    for frames in [1, 100, 647, 648, 649, 960, 24_000, 47_999, 48_001, 100_000] {
        for count in [1, 2] {
            let channels: Vec<_> = (0..count)
                .map(|c| tone(frames, 48_000, 300.0 + 200.0 * c as f64))
                .collect();
            let format = AudioFormat::OggOpus;
            encode_file(&path, &channels, 48_000, format, PcmScale::default()).unwrap();
            let decoded = read(&path);
            assert_eq!(
                decoded.info.frames,
                Some(frames as u64),
                "{frames} of {count}"
            );
            assert_eq!((decoded.info.codec, decoded.info.channels), ("Opus", count));
            if frames > 20_000 {
                for (found, wanted) in decoded.channels.iter().zip(&channels) {
                    let c = correlation(found, wanted);
                    assert!(c > 0.99, "{c}");
                }
            }
            // The last page says that it is the last.
            let bytes = std::fs::read(&path).unwrap();
            let page = bytes.windows(4).rposition(|w| w == b"OggS").unwrap();
            assert_eq!(bytes[page + 5] & 4, 4);
        }
    }
    // Other rates become 48 kHz.
    let sound = Waveform::new(tone(44_100, 44_100, 440.0), 44_100);
    sound.save_as(&path, AudioFormat::OggOpus).unwrap();
    let decoded = read(&path);
    assert_eq!(
        (decoded.info.sample_rate, decoded.info.frames),
        (48_000, Some(48_000))
    );
    assert!(correlation(&decoded.channels[0], &tone(48_000, 48_000, 440.0)) > 0.99);
}

#[cfg(feature = "mp3")]
#[test]
fn mp3_keeps_its_length() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.mp3");
    for rate in [8_000, 16_000, 22_050, 24_000, 44_100, 48_000] {
        for frames in [1, 1151, 1152, 1153, 40_000] {
            for count in [1, 2] {
                let channels: Vec<_> = (0..count)
                    .map(|c| tone(frames, rate, 300.0 + 200.0 * c as f64))
                    .collect();
                let format = AudioFormat::Mp3;
                encode_file(&path, &channels, rate, format, PcmScale::default()).unwrap();
                let decoded = read(&path);
                assert_eq!(
                    (decoded.info.codec, decoded.info.sample_rate),
                    ("MP3", rate)
                );
                assert_eq!(
                    decoded.info.frames,
                    Some(frames as u64),
                    "{rate} {frames} {count}"
                );
                if frames > 20_000 {
                    for (found, wanted) in decoded.channels.iter().zip(&channels) {
                        let c = correlation(found, wanted);
                        assert!(c > 0.99, "{rate} Hz: {c}");
                    }
                }
            }
        }
    }
}

#[cfg(not(feature = "mp3"))]
#[test]
fn mp3_needs_its_feature() {
    let dir = tempfile::tempdir().unwrap();
    let sound = Waveform::new(vec![0.0; 100], 44_100);
    let error = sound
        .save_as(dir.path().join("a.mp3"), AudioFormat::Mp3)
        .unwrap_err();
    assert!(error.to_string().contains("--features mp3"), "{error}");
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
}

#[test]
fn bare_samples() {
    let dir = tempfile::tempdir().unwrap();
    let (left, right) = ([0.25_f32, -1.0], [1.5_f32, 0.0]);
    let path = dir.path().join("a.f32");
    let format = AudioFormat::from_path(&path).unwrap();
    encode_file(&path, &[left, right], 8_000, format, PcmScale::default()).unwrap();
    let wanted: Vec<u8> = [0.25_f32, 1.5, -1.0, 0.0]
        .iter()
        .flat_map(|x| x.to_le_bytes())
        .collect();
    assert_eq!(std::fs::read(&path).unwrap(), wanted);
    let path = dir.path().join("a.RAW");
    let format = AudioFormat::from_path(&path).unwrap();
    assert_eq!(format, AudioFormat::RawS16);
    encode_file(&path, &[left, right], 8_000, format, PcmScale::default()).unwrap();
    let wanted: Vec<u8> = [0.25, 1.5, -1.0, 0.0]
        .iter()
        .flat_map(|&x| pcm16(x).to_le_bytes())
        .collect();
    assert_eq!(std::fs::read(&path).unwrap(), wanted);
}

#[test]
fn what_a_format_cannot_hold() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a");
    let refused = |channels: &[Vec<f32>], rate: u32, format: AudioFormat| {
        encode_file(&path, channels, rate, format, PcmScale::default()).unwrap_err()
    };
    let one = vec![0.0; 10];
    for format in [AudioFormat::Flac, AudioFormat::OggOpus, AudioFormat::Mp3] {
        assert!(matches!(
            refused(&[Vec::new()], 8_000, format),
            EncodeError::Shape { .. }
        ));
    }
    for format in [AudioFormat::OggOpus, AudioFormat::Mp3] {
        let three = vec![one.clone(); 3];
        let text = refused(&three, 8_000, format).to_string();
        assert!(text.contains("3 channels; expected 1 to 2"), "{text}");
    }
    for format in [
        AudioFormat::WavPcm16,
        AudioFormat::WavF32,
        AudioFormat::RawF32,
        AudioFormat::Flac,
    ] {
        assert!(
            refused(&[], 8_000, format)
                .to_string()
                .contains("0 channels")
        );
        assert!(
            refused(std::slice::from_ref(&one), 0, format)
                .to_string()
                .contains("rate of 0")
        );
        let uneven = refused(&[one.clone(), vec![0.0; 9]], 8_000, format);
        assert!(uneven.to_string().contains("different lengths"), "{uneven}");
        let error = refused(&[one.clone(), vec![f32::NAN; 10]], 8_000, format);
        assert!(matches!(
            error,
            EncodeError::NonFinite {
                channel: 2,
                index: 0,
                ..
            }
        ));
    }
    let text = refused(std::slice::from_ref(&one), 96_001, AudioFormat::Flac).to_string();
    assert!(text.contains("96001 Hz; expected 1 to 96000 Hz"), "{text}");
    assert_eq!(AudioFormat::OggOpus.written_rate(384_000), 48_000);
    assert_eq!(AudioFormat::Mp3.written_rate(11_026), 12_000);
    assert_eq!(AudioFormat::Flac.written_rate(11_026), 11_026);
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    assert_eq!(AudioFormat::from_path("a.m4a"), None);
    assert_eq!(AudioFormat::from_path("wav"), None);
}
