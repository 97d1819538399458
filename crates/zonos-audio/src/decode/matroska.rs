//! The parts of a Matroska file that tell which tracks there are and what to cut from their sound.
//!
//! The packets themselves come from a demuxer, which keeps priming and padding. Source: RFC 9559.

use super::Problem;
use super::source::Source;

/// Elements that are looked at: some hours of blocks.
const MAX_ELEMENTS: usize = 1 << 22;

/// Tracks that a file may have. Each block looks for its own among them.
const MAX_TRACKS: usize = 128;

#[derive(Debug, Default)]
pub(super) struct Track {
    pub(super) number: u64,
    /// 1 video, 2 audio.
    pub(super) kind: u64,
    pub(super) codec: String,
    /// Priming, in nanoseconds.
    pub(super) delay: u64,
    /// Padding of the last block, in nanoseconds.
    pub(super) padding: u64,
}

#[derive(Debug, Default)]
pub(super) struct Segment {
    pub(super) webm: bool,
    /// Written to a pipe, so that nothing tells where it ends.
    pub(super) live: bool,
    pub(super) tracks: Vec<Track>,
}

impl Segment {
    pub(super) fn track(&self, number: u32) -> Option<&Track> {
        self.tracks.iter().find(|t| t.number == u64::from(number))
    }
}

/// Reads the elements of the file in order. The levels of interest have different elements, so that
/// it is enough to enter them, without knowing where they end: streams do not say it either.
pub(super) fn scan(source: &mut Source) -> Result<Segment, Problem> {
    let mut segment = Segment::default();
    // The track that the latest block belongs to.
    let mut block = None;
    let mut at = 0;
    for _ in 0..MAX_ELEMENTS {
        let head = source.peek(at, 12)?;
        let Some((id, id_len)) = number(&head, true) else {
            break;
        };
        let Some((size, size_len)) = number(&head[id_len..], false) else {
            break;
        };
        let body = at + (id_len + size_len) as u64;
        let unknown = size == (1 << (7 * size_len)) - 1;
        let next = body.saturating_add(size);
        // The segment.
        segment.live |= unknown && id == 0x1853_8067;
        at = match id {
            // EBML, Segment, Tracks, Cluster, BlockGroup.
            0x1a45_dfa3 | 0x1853_8067 | 0x1654_ae6b | 0x1f43_b675 | 0xa0 => body,
            0xae => {
                if segment.tracks.len() == MAX_TRACKS {
                    return Err(Problem::damaged(format!(
                        "it has more than {MAX_TRACKS} tracks"
                    )));
                }
                segment.tracks.push(Track::default());
                body
            }
            _ if unknown => break,
            _ => next,
        };
        match id {
            0x4282 => segment.webm = source.peek(body, size.min(8) as usize)? == b"webm",
            // Block, SimpleBlock.
            0xa1 | 0xa3 => {
                let head = source.peek(body, 8)?;
                let track = number(&head, false).map(|(track, _)| track);
                block = segment.tracks.iter().position(|t| Some(t.number) == track);
                if let Some(track) = block {
                    segment.tracks[track].padding = 0;
                }
            }
            0x75a2 => {
                let value = integer(&source.peek(body, size.min(8) as usize)?);
                // Negative for padding before the block's sound, which nobody writes.
                if let Some(track) = block
                    && i64::try_from(value).is_ok()
                {
                    segment.tracks[track].padding = value;
                }
            }
            0xd7 | 0x83 | 0x86 | 0x56aa => {
                if let Some(track) = segment.tracks.last_mut() {
                    let bytes = source.peek(body, size.min(64) as usize)?;
                    match id {
                        0xd7 => track.number = integer(&bytes),
                        0x83 => track.kind = integer(&bytes),
                        0x86 => track.codec = String::from_utf8_lossy(&bytes).into_owned(),
                        _ => track.delay = integer(&bytes),
                    }
                }
            }
            _ => {}
        }
    }
    Ok(segment)
}

/// A number of variable length and its length: an element's id, which keeps the length's mark, or a
/// size, which does not.
fn number(bytes: &[u8], id: bool) -> Option<(u64, usize)> {
    let first = *bytes.first()?;
    let len = first.leading_zeros() as usize + 1;
    if len > if id { 4 } else { 8 } || bytes.len() < len {
        return None;
    }
    let value = integer(&bytes[..len]);
    let mask = if id { u64::MAX } else { (1 << (7 * len)) - 1 };
    Some((value & mask, len))
}

fn integer(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0, |n, &b| n << 8 | u64::from(b))
}

/// What a codec id stands for.
pub(super) fn codec_name(codec: &str) -> String {
    let name = match codec {
        "A_AC3" => "AC-3",
        "A_EAC3" => "E-AC-3",
        "A_DTS" => "DTS",
        "A_TRUEHD" => "TrueHD",
        "A_WAVPACK4" => "WavPack",
        "A_TTA1" => "True Audio",
        "A_MS/ACM" => "an audio codec of Windows (A_MS/ACM)",
        "" => "an unnamed codec",
        _ => return format!("codec {codec:?}"),
    };
    name.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn element(id: &[u8], body: &[u8]) -> Vec<u8> {
        let mut all = id.to_vec();
        all.push(0x80 | body.len() as u8);
        all.extend(body);
        all
    }

    #[test]
    fn streams_of_unknown_size_are_read() {
        let track = [
            element(&[0xd7], &[1]),
            element(&[0x83], &[2]),
            element(&[0x86], b"A_OPUS"),
            element(&[0x56, 0xaa], &[0x63, 0x2e, 0xa0]),
        ]
        .concat();
        let mut file = element(&[0x1a, 0x45, 0xdf, 0xa3], &element(&[0x42, 0x82], b"webm"));
        file.extend([
            0x18, 0x53, 0x80, 0x67, 0x01, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff,
        ]);
        file.extend(element(
            &[0x16, 0x54, 0xae, 0x6b],
            &element(&[0xae], &track),
        ));
        file.extend([0x1f, 0x43, 0xb6, 0x75, 0xff]);
        let block = [0x81, 0, 0, 0, 1, 2, 3];
        let group = |padding: &[u8]| {
            let parts = [element(&[0xa1], &block), element(&[0x75, 0xa2], padding)];
            element(&[0xa0], &parts.concat())
        };
        let scanned = |file: &[u8]| {
            let mut source = Source::memory(file.to_vec(), u64::MAX).unwrap();
            scan(&mut source).unwrap()
        };
        file.extend(group(&[9]));
        file.extend(element(&[0xa3], &block));
        let segment = scanned(&file);
        assert!(segment.webm && segment.live);
        let track = segment.track(1).unwrap();
        assert_eq!((track.kind, track.codec.as_str()), (2, "A_OPUS"));
        // Padding counts where it ends the track.
        assert_eq!((track.delay, track.padding), (6_500_000, 0));
        file.extend(group(&[0x01, 0x00]));
        assert_eq!(scanned(&file).track(1).unwrap().padding, 256);
    }

    #[test]
    fn too_many_tracks_are_refused() {
        let mut file = element(&[0x1a, 0x45, 0xdf, 0xa3], &element(&[0x42, 0x82], b"webm"));
        file.extend([0x18, 0x53, 0x80, 0x67, 0xff, 0x16, 0x54, 0xae, 0x6b, 0xff]);
        file.extend(element(&[0xae], &[]).repeat(MAX_TRACKS));
        let scanned = |file: &[u8]| scan(&mut Source::memory(file.to_vec(), u64::MAX).unwrap());
        assert_eq!(scanned(&file).unwrap().tracks.len(), MAX_TRACKS);
        file.extend(element(&[0xae], &[]));
        let text = scanned(&file).unwrap_err().to_string();
        assert!(text.contains("more than 128 tracks"), "{text}");
    }

    #[test]
    fn numbers() {
        assert_eq!(
            number(&[0x1a, 0x45, 0xdf, 0xa3], true),
            Some((0x1a45_dfa3, 4))
        );
        assert_eq!(number(&[0x40, 0x02], false), Some((2, 2)));
        assert_eq!(number(&[0x40], false), None);
        assert_eq!(number(&[0x08, 0, 0, 0, 0], true), None);
        assert_eq!(number(&[0], false), None);
    }
}
