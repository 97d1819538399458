//! Codecs in their containers (field report H10): by content, trimmed to the sound, or refused by name.

use zonos_audio::decode::{DecodeLimits, Decoded, Problem, decode_file};

use super::{bytes, fixture};

fn open(name: &str) -> Decoded {
    decode_file(
        fixture(&format!("containers/{name}")),
        &DecodeLimits::default(),
    )
    .unwrap()
}

/// Every file holds the same half second.
#[test]
fn half_a_second_in_every_container() {
    for (name, container, codec, rate, channels, frames) in [
        ("opus.ogg", "Ogg", "Opus", 48_000, 1, 24_000),
        ("opus.webm", "WebM", "Opus", 48_000, 1, 24_000),
        ("opus.mkv", "Matroska", "Opus", 48_000, 1, 24_000),
        ("opus.m4a", "MP4", "Opus", 48_000, 1, 24_000),
        ("opus_6.ogg", "Ogg", "Opus", 48_000, 6, 24_000),
        ("alac.m4a", "MP4", "ALAC", 16_000, 1, 8_000),
        ("alac.caf", "CAF", "ALAC", 16_000, 1, 8_000),
        ("flac.ogg", "Ogg", "FLAC", 16_000, 1, 8_000),
        ("flac.m4a", "MP4", "FLAC", 16_000, 1, 8_000),
        ("flac.mkv", "Matroska", "FLAC", 16_000, 1, 8_000),
        ("mp3_named.wav", "MPEG audio", "MP3", 24_000, 1, 12_000),
        ("mp3.m4a", "MP4", "MP3", 24_000, 1, 12_000),
        ("float.aifc", "AIFF", "float PCM", 16_000, 1, 8_000),
    ] {
        let decoded = open(name);
        let info = &decoded.info;
        assert_eq!((info.container, info.codec), (container, codec), "{name}");
        assert_eq!(
            (info.sample_rate, info.channels),
            (rate, channels),
            "{name}"
        );
        assert_eq!(info.frames, Some(frames), "{name}");
        assert_eq!(decoded.warnings, [""; 0], "{name}");
    }
}

/// These do not say where the sound ends within their last block.
#[test]
fn padding_that_nothing_tells_is_kept() {
    for (name, codec, channels, frames, most) in [
        ("adpcm_ms.wav", "Microsoft ADPCM", 2, 8_000, 9_000),
        ("adpcm_ima.wav", "IMA ADPCM", 2, 8_000, 9_100),
        ("layer2.mp2", "MPEG layer II", 1, 8_000, 9_300),
        ("opus_live.webm", "Opus", 1, 24_000, 25_000),
        ("vorbis.webm", "Vorbis", 1, 24_000, 25_000),
        ("aac_fragmented.m4a", "AAC", 1, 12_000, 13_400),
        ("aac.mkv", "AAC", 1, 12_000, 13_400),
    ] {
        let decoded = open(name);
        let info = &decoded.info;
        assert_eq!((info.codec, info.channels), (codec, channels), "{name}");
        let found = info.frames.unwrap();
        assert!((frames..most).contains(&found), "{name}: {found}");
        assert_eq!(decoded.warnings, [""; 0], "{name}");
    }
}

/// All of them sound alike: the same clip, through codecs of different loss.
#[test]
fn they_hold_the_same_sound() {
    let level = |name: &str| open(name).to_mono().rms();
    let exact = level("alac.m4a");
    assert!(exact > 0.01);
    for name in ["alac.caf", "flac.ogg", "flac.m4a", "flac.mkv"] {
        assert_eq!(open(name).channels, open("alac.m4a").channels, "{name}");
    }
    // Not rounded to 16 bits.
    assert!((level("float.aifc") - exact).abs() < 1e-4);
    for name in [
        "opus.ogg",
        "opus.webm",
        "opus.m4a",
        "opus_live.webm",
        "vorbis.webm",
        "mp3_named.wav",
        "mp3.m4a",
        "layer2.mp2",
        "aac.mkv",
        "aac_fragmented.m4a",
    ] {
        let ratio = level(name) / exact;
        assert!((0.8..1.2).contains(&ratio), "{name}: {ratio}");
    }
    // One channel made two, at the same power.
    for name in ["adpcm_ms.wav", "adpcm_ima.wav"] {
        let decoded = open(name);
        assert_eq!(decoded.channels[0], decoded.channels[1], "{name}");
        let ratio = level(name) / exact;
        assert!((0.68..0.73).contains(&ratio), "{name}: {ratio}");
    }
    // The same packets in four containers, cut alike.
    for name in ["opus.webm", "opus.mkv", "opus.m4a"] {
        assert_eq!(open(name).channels, open("opus.ogg").channels, "{name}");
    }
}

#[test]
fn other_codecs_are_named() {
    for (name, codec, container) in [
        ("ac3.mkv", "AC-3", "Matroska"),
        ("ac3.m4a", "AC-3", "MP4"),
        ("speex.ogg", "Speex", "Ogg"),
        ("wavpack.wv", "WavPack", ""),
    ] {
        let path = fixture(&format!("containers/{name}"));
        let error = decode_file(path, &DecodeLimits::default()).unwrap_err();
        assert!(
            matches!(error.problem(), Problem::Unsupported { .. }),
            "{error}"
        );
        let text = error.to_string();
        assert!(text.contains(codec) && text.contains(container), "{text}");
        assert!(text.contains("not supported; supported: PCM"), "{text}");
    }
}

/// Sound in CAF as programs write it to a pipe, without its length, and cut short.
#[test]
fn caf_without_a_length() {
    let caf = |size: i64, samples: usize| {
        let mut file = b"caff\0\x01\0\0desc\0\0\0\0\0\0\0\x20".to_vec();
        file.extend(16_000_f64.to_be_bytes());
        file.extend(b"lpcm");
        // Little-endian, 2 bytes a packet, 1 frame, 1 channel, 16 bits.
        for field in [2_u32, 2, 1, 1, 16] {
            file.extend(field.to_be_bytes());
        }
        file.extend(b"data");
        file.extend(size.to_be_bytes());
        file.extend([0; 4]);
        file.extend(8_192_i16.to_le_bytes().repeat(samples));
        file
    };
    for (size, samples, warns) in [
        (4 + 2 * 3000, 3000, false),
        (-1, 3000, false),
        (1 << 40, 3000, true),
    ] {
        let mut file = caf(size, samples);
        if size == -1 {
            // Half a sample more.
            file.push(1);
        }
        let decoded = bytes("live.caf", file).unwrap();
        assert_eq!((decoded.info.container, decoded.info.codec), ("CAF", "PCM"));
        assert_eq!(decoded.channels, [vec![0.25; samples]], "{size}");
        let warnings = decoded.warnings.join("; ");
        assert_eq!(warnings.contains("cut short"), warns, "{size}: {warnings}");
    }
    let mut flac = caf(-1, 10);
    flac[28..32].copy_from_slice(b"flac");
    let text = bytes("flac.caf", flac).unwrap_err().to_string();
    assert!(text.contains("FLAC in CAF is not supported"), "{text}");
}

#[test]
fn names_do_not_matter() {
    let mp3 = std::fs::read(fixture("containers/mp3_named.wav")).unwrap();
    for name in ["a.wav", "a.ogg", "a", "a.txt"] {
        assert_eq!(bytes(name, mp3.clone()).unwrap().info.codec, "MP3");
    }
}

#[test]
fn joined_files() {
    // Players play both; the tag of the first one tells its own length only.
    let mp3 = std::fs::read(fixture("containers/mp3_named.wav")).unwrap();
    let once = open("mp3_named.wav").channels[0].len();
    let twice = bytes("twice", mp3.repeat(2)).unwrap().channels[0].len();
    assert!(twice > 2 * once, "{twice}");
    // Chained Ogg streams are streams of their own.
    let ogg = std::fs::read(fixture("containers/opus.ogg")).unwrap();
    let chained = bytes("chained", ogg.repeat(2)).unwrap();
    assert!(chained.channels[0].len() >= 24_000);
}

#[test]
fn tags_before_the_sound() {
    let mut tagged = b"ID3\x03\0\0\0\0\x0f\x7f".to_vec();
    tagged.extend([0; 0x7ff]);
    tagged.extend(std::fs::read(fixture("containers/mp3_named.wav")).unwrap());
    assert_eq!(
        bytes("tagged", tagged.clone()).unwrap().info.frames,
        Some(12_000)
    );
    tagged.truncate(1000);
    assert!(
        bytes("tags alone", tagged)
            .unwrap_err()
            .to_string()
            .contains("tags")
    );
}
