//! What a file is, from its bytes.

use super::Problem;
use super::source::Source;

/// Which reader takes a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Wav,
    Aiff,
    Packets(Container),
}

/// A container of compressed packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Container {
    Flac,
    Ogg,
    Mp4,
    Matroska,
    Mpeg,
    Adts,
    Caf,
}

impl Container {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Flac => "FLAC",
            Self::Ogg => "Ogg",
            Self::Mp4 => "MP4",
            Self::Matroska => "Matroska/WebM",
            Self::Mpeg => "MPEG audio",
            Self::Adts => "ADTS",
            Self::Caf => "CAF",
        }
    }
}

/// Bytes that signatures are looked for in.
const HEAD: usize = 4096;

/// How far into a file without signature MPEG frames may begin: some begin with padding or the tail
/// of a frame.
const MPEG_SEARCH: usize = 64 << 10;

/// Tags before the audio itself.
const MAX_TAGS: usize = 8;

/// Finds out what `source` is, and leaves out tags before it.
pub(super) fn sniff(source: &mut Source) -> Result<Kind, Problem> {
    let mut tagged = false;
    for _ in 0..MAX_TAGS {
        let head = source.peek(0, 10)?;
        let Some(size) = id3_size(&head) else { break };
        tagged = true;
        if size >= source.len() {
            return Err(Problem::CutShort("it ends within its tags"));
        }
        source.skip_to(size)?;
    }
    let head = source.peek(0, HEAD)?;
    if let Some(kind) = signature(&head)? {
        return Ok(kind);
    }
    // Frames have a weak mark of 11 bits, so that several have to follow each other.
    let reach = source.peek(0, MPEG_SEARCH)?;
    let needed = |at: usize| match at {
        0 if tagged => 1,
        0 => 2,
        _ => 4,
    };
    if adts_frames(&reach) >= 2 {
        return Ok(Kind::Packets(Container::Adts));
    }
    for at in 0..reach.len() {
        if reach[at] == 0xff && mpeg_frames(&reach[at..], needed(at)) {
            source.skip_to(at as u64)?;
            return Ok(Kind::Packets(Container::Mpeg));
        }
    }
    source.go_to(0)?;
    Err(bare(&head).unwrap_or_else(|| stranger(&head)))
}

fn id3_size(head: &[u8]) -> Option<u64> {
    let [b'I', b'D', b'3', version, _, flags, size @ ..] = head else {
        return None;
    };
    if *version == 0xff || size.len() < 4 || size[..4].iter().any(|b| *b >= 0x80) {
        return None;
    }
    let size = size[..4].iter().fold(0, |n, &b| n << 7 | u64::from(b));
    let footer = if flags & 0x10 == 0 { 0 } else { 10 };
    Some(10 + size + footer)
}

fn signature(head: &[u8]) -> Result<Option<Kind>, Problem> {
    let is = |mark: &[u8]| head.starts_with(mark);
    let at = |offset: usize, mark: &[u8]| head.get(offset..).is_some_and(|h| h.starts_with(mark));
    let kind = if is(b"RIFF") || is(b"RF64") || is(b"BW64") {
        if head.len() < 12 {
            return Err(Problem::CutShort("the header is incomplete"));
        }
        if !at(8, b"WAVE") {
            return Err(Problem::NotAudio(format!(
                "a RIFF file, but not WAVE audio: {:?}",
                String::from_utf8_lossy(&head[8..12])
            )));
        }
        Kind::Wav
    } else if is(b"FORM") && (at(8, b"AIFF") || at(8, b"AIFC")) {
        Kind::Aiff
    } else if is(b"fLaC") {
        Kind::Packets(Container::Flac)
    } else if is(b"OggS") {
        ogg_codec(head)?;
        Kind::Packets(Container::Ogg)
    } else if at(4, b"ftyp") {
        Kind::Packets(Container::Mp4)
    } else if is(&[0x1a, 0x45, 0xdf, 0xa3]) {
        Kind::Packets(Container::Matroska)
    } else if is(b"caff") {
        Kind::Packets(Container::Caf)
    } else {
        return match foreign(head) {
            Some(problem) => Err(problem),
            None => Ok(None),
        };
    };
    Ok(Some(kind))
}

/// Refuses an Ogg file whose first stream has a codec that nothing here reads.
fn ogg_codec(head: &[u8]) -> Result<(), Problem> {
    let segments = usize::from(head.get(26).copied().unwrap_or(0));
    let packet = head.get(27 + segments..).unwrap_or_default();
    let named = |mark: &[u8]| packet.starts_with(mark);
    let codec = if named(b"Speex   ") {
        "Speex"
    } else if named(b"\x80theora") {
        "Theora"
    } else if named(b"PCM     ") {
        "PCM"
    } else if named(b"\x80kate") {
        "Kate"
    } else {
        return Ok(());
    };
    Err(Problem::unsupported(codec, "Ogg"))
}

/// Files that have a signature of their own and are not read.
fn foreign(head: &[u8]) -> Option<Problem> {
    let audio = [
        (&b"RIFX"[..], "big-endian WAV (RIFX)"),
        (b"riff\x2e\x91\xcf\x11", "Wave64"),
        (b"#!AMR", "AMR"),
        (b"wvpk", "WavPack"),
        (b"MAC ", "Monkey's Audio"),
        (b"TTA1", "True Audio"),
        (b".snd", "Sun audio (AU)"),
        (b"DSD ", "DSD"),
        (b"FRM8", "DSD"),
        (b"MPCK", "Musepack"),
        (b"MP+", "Musepack"),
        (b"ADIF", "AAC with ADIF header"),
        (b"\x30\x26\xb2\x75\x8e\x66\xcf\x11", "Windows Media (ASF)"),
        (b".RMF", "RealMedia"),
        (b"FLV\x01", "Flash video"),
        (b"Creative Voice File", "Creative Voice"),
        (b"\0\0\x01\xba", "MPEG program stream"),
    ];
    let other = [
        (&b"\x89PNG"[..], "this is a PNG image"),
        (b"\xff\xd8\xff", "this is a JPEG image"),
        (b"GIF8", "this is a GIF image"),
        (b"BM", "this may be a BMP image"),
        (b"%PDF", "this is a PDF document"),
        (b"PK\x03\x04", "this is a ZIP archive"),
        (b"\x1f\x8b", "this is a gzip archive"),
        (b"7z\xbc\xaf", "this is a 7z archive"),
        (b"Rar!", "this is a RAR archive"),
        (b"\x7fELF", "this is a program"),
        (b"MZ", "this may be a Windows program"),
        (b"MThd", "this is a MIDI score, which holds no sound"),
        (b"\x93NUMPY", "this is a NumPy array"),
        (b"GGUF", "this is a GGUF checkpoint"),
        (b"SQLite format 3", "this is an SQLite database"),
    ];
    let find = |list: &[(&[u8], &'static str)]| {
        list.iter()
            .find(|(mark, _)| head.starts_with(mark))
            .map(|(_, name)| *name)
    };
    if let Some(name) = find(&audio) {
        return Some(Problem::unsupported(name, ""));
    }
    if let Some(kind) = [b"moov", b"mdat", b"wide"]
        .iter()
        .find(|kind| head.get(4..8).is_some_and(|h| h == **kind))
    {
        return Some(Problem::damaged(format!(
            "it looks like MP4 or QuickTime, but begins with {:?} and not with its type",
            String::from_utf8_lossy(*kind)
        )));
    }
    // Two letters are weak marks: text may begin with them.
    find(&other)
        .filter(|_| !is_text(head))
        .map(|what| Problem::NotAudio(what.to_owned()))
}

/// Streams without a signature that are known by marks in a row, and are not read.
fn bare(head: &[u8]) -> Option<Problem> {
    const PACKET: usize = 188;
    let sync = |at: usize| head.get(at) == Some(&0x47);
    if (0..4).all(|i| sync(i * PACKET)) {
        return Some(Problem::unsupported("MPEG transport stream", ""));
    }
    match head {
        [0x0b, 0x77, _, _, _, version, ..] => match version >> 3 {
            0..=10 => Some(Problem::unsupported("AC-3", "")),
            11..=16 => Some(Problem::unsupported("E-AC-3", "")),
            _ => None,
        },
        _ => None,
    }
}

fn stranger(head: &[u8]) -> Problem {
    let what = if is_text(head) {
        let lower = head[..head.len().min(256)].to_ascii_lowercase();
        let lower = lower.trim_ascii_start();
        if lower.starts_with(b"<!doctype html") || lower.starts_with(b"<html") {
            "this is a web page"
        } else {
            "no known signature; the first bytes are plain text"
        }
    } else {
        "no known signature, and no MPEG frames"
    };
    Problem::NotAudio(what.to_owned())
}

fn is_text(head: &[u8]) -> bool {
    let head = &head[..head.len().min(512)];
    let valid = match std::str::from_utf8(head) {
        Ok(_) => true,
        // Cut within a character.
        Err(e) => e.error_len().is_none(),
    };
    valid
        && head
            .iter()
            .all(|&b| b >= 0x20 && b != 0x7f || matches!(b, b'\t' | b'\n' | b'\r'))
}

/// Whether `count` MPEG audio frames of one kind follow each other, or as many as there is room for
/// but at least one whole frame.
fn mpeg_frames(bytes: &[u8], count: usize) -> bool {
    let mut at = 0;
    let mut kind = None;
    for seen in 0..count {
        let Some(header) = bytes.get(at..at + 4) else {
            // The end of the file, behind whole frames.
            return seen > count / 3 && at == bytes.len();
        };
        let Some((this, size)) = mpeg_header([header[0], header[1], header[2], header[3]]) else {
            return false;
        };
        if *kind.get_or_insert(this) != this {
            return false;
        }
        at += size;
    }
    true
}

/// What stays the same in all frames of a stream (version, layer, rate), and the size of this one.
fn mpeg_header(h: [u8; 4]) -> Option<((u8, u8, u8), usize)> {
    const LAYER1: [u32; 15] = [
        0, 32, 64, 96, 128, 160, 192, 224, 256, 288, 320, 352, 384, 416, 448,
    ];
    const LAYER2: [u32; 15] = [
        0, 32, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320, 384,
    ];
    const LAYER3: [u32; 15] = [
        0, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320,
    ];
    const LOW1: [u32; 15] = [
        0, 32, 48, 56, 64, 80, 96, 112, 128, 144, 160, 176, 192, 224, 256,
    ];
    const LOW23: [u32; 15] = [0, 8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160];
    if h[0] != 0xff || h[1] & 0xe0 != 0xe0 {
        return None;
    }
    let version = h[1] >> 3 & 3; // 0: 2.5, 2: 2, 3: 1
    let layer = 4 - (h[1] >> 1 & 3); // 4: none
    let rate = h[2] >> 2 & 3;
    let index = usize::from(h[2] >> 4);
    if version == 1 || layer == 4 || rate == 3 || index == 0 || index == 15 || h[3] & 3 == 2 {
        return None;
    }
    let table = match (version, layer) {
        (3, 1) => LAYER1,
        (3, 2) => LAYER2,
        (3, _) => LAYER3,
        (_, 1) => LOW1,
        _ => LOW23,
    };
    let bits = 1000 * table[index];
    let hertz = [44_100, 48_000, 32_000][usize::from(rate)]
        / match version {
            3 => 1,
            2 => 2,
            _ => 4,
        };
    let padding = u32::from(h[2] >> 1 & 1);
    let size = match layer {
        1 => (12 * bits / hertz + padding) * 4,
        3 if version != 3 => 72 * bits / hertz + padding,
        _ => 144 * bits / hertz + padding,
    };
    Some(((version, layer, rate), size as usize))
}

/// AAC frames with ADTS headers that follow each other from the start, up to 2; the end of the file
/// behind a frame counts as one.
fn adts_frames(bytes: &[u8]) -> usize {
    let mut at = 0;
    for seen in 0..2 {
        let Some(h) = bytes.get(at..at + 7) else {
            return if seen > 0 && at == bytes.len() {
                2
            } else {
                seen
            };
        };
        let size = usize::from(h[3] & 3) << 11 | usize::from(h[4]) << 3 | usize::from(h[5] >> 5);
        if h[0] != 0xff || h[1] & 0xf6 != 0xf0 || size < 7 {
            return seen;
        }
        at += size;
    }
    2
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kind(bytes: &[u8]) -> Result<Kind, Problem> {
        sniff(&mut Source::memory(bytes.to_vec(), u64::MAX).unwrap())
    }

    /// A silent frame of MPEG 1 layer III, 128 kb/s, 44.1 kHz.
    fn frame() -> Vec<u8> {
        let mut frame = vec![0; 417];
        frame[..4].copy_from_slice(&[0xff, 0xfb, 0x90, 0xc4]);
        frame
    }

    #[test]
    fn mpeg_needs_frames_in_a_row() {
        let mpeg = Kind::Packets(Container::Mpeg);
        assert_eq!(kind(&frame().repeat(2)).unwrap(), mpeg);
        assert_eq!(kind(&frame()).unwrap(), mpeg);
        assert!(kind(&frame()[..416]).is_err());
        let mut late = vec![0xff; 100];
        late.extend(frame().repeat(4));
        assert_eq!(kind(&late).unwrap(), mpeg);
        let mut few = vec![0; 100];
        few.extend(frame().repeat(1));
        few.extend([0; 500]);
        assert!(kind(&few).is_err());
    }

    #[test]
    fn tags_are_left_out() {
        let mut tagged = b"ID3\x04\0\0\0\0\x01\0".to_vec();
        tagged.extend([0; 128]);
        tagged.extend(frame().repeat(2));
        assert_eq!(kind(&tagged).unwrap(), Kind::Packets(Container::Mpeg));
        assert!(matches!(kind(&tagged[..100]), Err(Problem::CutShort(_))));
    }

    #[test]
    fn strangers_are_named() {
        let text = |bytes: &[u8]| kind(bytes).unwrap_err().to_string();
        assert!(text(b"\x89PNG\r\n\x1a\n").contains("PNG image"));
        assert!(text(b" <!DOCTYPE html><p>").contains("web page"));
        assert!(text("BMe\u{e9} words".as_bytes()).contains("plain text"));
        assert!(text(b"#!AMR\n\x04").contains("AMR"));
        assert!(text(&[0x80; 300]).contains("no known signature"));
        assert!(text(&[0x0b, 0x77, 1, 2, 0x1c, 0x40, 9, 9]).starts_with("AC-3 is not"));
        assert!(text(&[0x0b, 0x77, 1, 2, 0x3f, 0x80, 9, 9]).starts_with("E-AC-3 is not"));
        let mut packet = [0x20; 188];
        packet[0] = 0x47;
        assert!(text(&packet.repeat(4)).starts_with("MPEG transport stream"));
        assert!(text(b"RIFF\0\0\0\0AVI LIST").contains("not WAVE"));
    }
}
