//! The parts of a CAF file that its demuxer takes from nobody: how long the samples are where the header
//! does not say it, and what a codec is called.
//!
//! Source: "Apple Core Audio Format Specification 1.0", Apple 2011.

use super::Problem;
use super::source::Source;

/// Chunks that are looked at; real files have a dozen.
const MAX_CHUNKS: usize = 1 << 12;

/// Bytes in front of the samples, in their chunk.
const EDITS: u64 = 4;

#[derive(Debug, Default)]
pub(super) struct Layout {
    /// The four letters of the codec.
    pub(super) codec: [u8; 4],
    /// Whether the file ends within its samples.
    pub(super) short: bool,
}

/// Reads the chunks. The size of samples that were written to a pipe, -1, and one beyond the end of the
/// file become what is there, so that the demuxer reads them to the end.
pub(super) fn scan(source: &mut Source) -> Result<Layout, Problem> {
    let mut layout = Layout::default();
    let mut packet = 0;
    let mut at = 8;
    for _ in 0..MAX_CHUNKS {
        let head = source.peek(at, 12)?;
        let Some((kind, size)) = head.split_at_checked(4) else {
            break;
        };
        let Some(size) = size.first_chunk().copied().map(i64::from_be_bytes) else {
            break;
        };
        let body = at + 12;
        let room = source.len().saturating_sub(body);
        match kind {
            b"desc" => {
                let fields = source.peek(body, 32)?;
                if let Some(codec) = fields.get(8..12).and_then(|b| b.first_chunk()) {
                    layout.codec = *codec;
                }
                if let Some(bytes) = fields.get(16..20).and_then(|b| b.first_chunk()) {
                    packet = u64::from(u32::from_be_bytes(*bytes));
                }
            }
            b"data" => {
                let Some(samples) = room.checked_sub(EDITS) else {
                    break;
                };
                layout.short = u64::try_from(size).is_ok_and(|claimed| claimed > room);
                if layout.short || size == -1 {
                    let whole = samples - samples.checked_rem(packet).unwrap_or(0);
                    source.patch(at + 4, (whole + EDITS).to_be_bytes());
                    if whole < samples {
                        // An incomplete packet would pass for a chunk.
                        source.truncate(body + EDITS + whole);
                    }
                    break;
                }
            }
            _ => {}
        }
        let Ok(size) = u64::try_from(size) else { break };
        at = body.saturating_add(size);
    }
    Ok(layout)
}

/// What four letters stand for.
pub(super) fn codec_name(codec: [u8; 4]) -> String {
    let name = match &codec {
        b"lpcm" => "PCM of this width",
        b"flac" => "FLAC",
        b"opus" => "Opus",
        b"aac " => "AAC",
        b"aach" | b"aacp" => "HE-AAC",
        b"ima4" => "IMA ADPCM",
        b"ac-3" => "AC-3",
        b"ec-3" => "E-AC-3",
        b"samr" => "AMR (narrow band)",
        b"QDM2" | b"QDMC" => "QDesign",
        b"ilbc" => "iLBC",
        b"MAC3" | b"MAC6" => "MACE",
        _ => return format!("codec {:?}", String::from_utf8_lossy(&codec)),
    };
    name.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chunk(kind: &[u8; 4], size: i64, body: &[u8]) -> Vec<u8> {
        let mut all = kind.to_vec();
        all.extend(size.to_be_bytes());
        all.extend(body);
        all
    }

    /// A file of 16-bit samples, two channels.
    fn file(size: i64, samples: &[u8]) -> Vec<u8> {
        let mut format = 16_000_f64.to_be_bytes().to_vec();
        format.extend(b"lpcm");
        format.extend([0, 0, 0, 2, 0, 0, 0, 4, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0, 16]);
        let mut data = vec![0; 4];
        data.extend(samples);
        let head = b"caff\0\x01\0\0".to_vec();
        [
            head,
            chunk(b"desc", 32, &format),
            chunk(b"data", size, &data),
        ]
        .concat()
    }

    #[test]
    fn sizes_that_are_none_become_what_is_there() {
        for (size, short, patched) in [
            (44, false, 44),
            (-1, false, 44),
            (1000, true, 44),
            (-7, false, -7),
        ] {
            let mut source = Source::memory(file(size, &[1; 40]), u64::MAX).unwrap();
            let layout = scan(&mut source).unwrap();
            assert_eq!((&layout.codec, layout.short), (b"lpcm", short), "{size}");
            let found = source.peek(8 + 44 + 4, 8).unwrap();
            assert_eq!(found, i64::to_be_bytes(patched), "{size}");
            // In pieces, too, and nothing else is touched.
            let mut rest = source.peek(8 + 44 + 7, 3).unwrap();
            rest.extend(source.peek(8 + 44 + 10, 7).unwrap());
            assert_eq!(rest[..5], i64::to_be_bytes(patched)[3..], "{size}");
            assert_eq!(rest[5..], [0, 0, 0, 0, 1], "{size}");
        }
        // The last packet is not whole.
        let mut source = Source::memory(file(-1, &[1; 43]), u64::MAX).unwrap();
        scan(&mut source).unwrap();
        assert_eq!(source.len(), 8 + 44 + 12 + 4 + 40);
    }
}
