//! The parts of an MP4 index that tell which tracks there are and where their sound begins and ends.
//!
//! The packets themselves come from a demuxer, which does not follow edit lists. Source: ISO/IEC
//! 14496-12.

use super::Problem;
use super::source::Source;

/// Boxes that are looked at; real files have some dozens outside their tables, and seven a fragment,
/// of which there may be ten a second.
const MAX_BOXES: usize = 1 << 19;

/// Nesting that is followed.
const MAX_DEPTH: usize = 8;

#[derive(Debug, Default)]
pub(super) struct Track {
    pub(super) id: u32,
    /// `soun`, `vide`, ...
    pub(super) handler: [u8; 4],
    /// The four letters of the sample entry.
    pub(super) codec: [u8; 4],
    /// Ticks a second of the track's own times.
    timescale: u32,
    edits: Vec<Edit>,
}

#[derive(Debug)]
struct Edit {
    /// In ticks of the movie; 0 where unknown.
    duration: u64,
    /// In ticks of the track; negative for a pause.
    from: i64,
}

#[derive(Debug, Default)]
pub(super) struct Movie {
    pub(super) tracks: Vec<Track>,
    timescale: u32,
}

impl Movie {
    /// Frames of priming, and frames of sound after it where the file tells, of track `id`. `length`
    /// is the number of frames that its packets hold together, where known.
    pub(super) fn trim(&self, id: u32, rate: u32, length: Option<u64>) -> (u64, Option<u64>) {
        let Some(track) = self.tracks.iter().find(|t| t.id == id) else {
            return (0, None);
        };
        let mut played = track.edits.iter().filter(|e| e.from >= 0);
        let (Some(edit), rest) = (played.next(), played.count()) else {
            return (0, None);
        };
        if track.timescale == 0 || self.timescale == 0 {
            return (0, None);
        }
        let frames = |ticks: u64, scale: u32| {
            let frames = u128::from(ticks) * u128::from(rate);
            let scale = u128::from(scale);
            u64::try_from((frames + scale / 2) / scale).unwrap_or(u64::MAX)
        };
        let skip = frames(edit.from.unsigned_abs(), track.timescale);
        // Several parts, or no length: everything after the priming is sound.
        if rest > 0 || edit.duration == 0 {
            return (skip, None);
        }
        let keep = frames(edit.duration, self.timescale);
        // Movie ticks are coarse, often milliseconds; the packets tell the end to the sample.
        let exact = length.map(|length| length.saturating_sub(skip));
        let tick = frames(1, self.timescale).max(1);
        match exact {
            Some(exact) if exact.abs_diff(keep) <= tick => (skip, Some(exact)),
            _ => (skip, Some(keep)),
        }
    }
}

/// Finds the index and reads it.
pub(super) fn scan(source: &mut Source) -> Result<Movie, Problem> {
    let mut scan = Scan {
        movie: Movie::default(),
        found: false,
        boxes: 0,
        samples: 0,
    };
    let end = source.len();
    scan.boxes_in(source, 0, end, 0)?;
    if !scan.found {
        return Err(Problem::CutShort("its index is missing"));
    }
    Ok(scan.movie)
}

struct Scan {
    movie: Movie,
    found: bool,
    boxes: usize,
    /// Samples in all fragments.
    samples: u64,
}

impl Scan {
    fn boxes_in(
        &mut self,
        source: &mut Source,
        start: u64,
        end: u64,
        depth: usize,
    ) -> Result<(), Problem> {
        let mut at = start;
        while at + 8 <= end {
            self.boxes += 1;
            if self.boxes > MAX_BOXES || depth > MAX_DEPTH {
                return Err(Problem::damaged("its index has too many parts"));
            }
            let head = source.peek(at, 16)?;
            if head.len() < 8 {
                return Ok(());
            }
            let (header, size) = match u32_at(&head, 0) {
                0 => (8, end - at),
                1 if head.len() == 16 => (16, u64_at(&head, 8)),
                size => (8, u64::from(size)),
            };
            if size < header {
                return Err(Problem::damaged("a box smaller than its header"));
            }
            let next = at.saturating_add(size).min(end);
            let body = at + header;
            if body <= next {
                let kind = [head[4], head[5], head[6], head[7]];
                self.take(source, kind, body, next, depth)?;
            }
            at = next;
        }
        Ok(())
    }

    fn take(
        &mut self,
        source: &mut Source,
        kind: [u8; 4],
        body: u64,
        end: u64,
        depth: usize,
    ) -> Result<(), Problem> {
        match &kind {
            b"moov" => self.found = true,
            b"trak" => self.movie.tracks.push(Track::default()),
            b"mdia" | b"minf" | b"stbl" | b"edts" | b"moof" | b"traf" => {}
            b"trun" => return self.run(source, body, end),
            _ => return self.leaf(source, kind, body, end),
        }
        self.boxes_in(source, body, end, depth + 1)
    }

    /// A run of samples in a fragment. The demuxer counts them one by one, so a run that the file cannot
    /// hold, billions in a few bytes, is refused here.
    fn run(&mut self, source: &mut Source, body: u64, end: u64) -> Result<(), Problem> {
        /// Flags of fields that every sample has, four bytes each.
        const FIELDS: u32 = 0xf00;
        let head = source.peek(body, 8)?;
        if head.len() < 8 || end - body < 8 {
            return Ok(());
        }
        let fields = (u32_at(&head, 0) & FIELDS).count_ones();
        let samples = u64::from(u32_at(&head, 4));
        self.samples += samples;
        if samples * 4 * u64::from(fields) > end - body - 8 || self.samples > source.len() {
            return Err(Problem::damaged(
                "a fragment with more samples than the file has room for",
            ));
        }
        Ok(())
    }

    fn leaf(
        &mut self,
        source: &mut Source,
        kind: [u8; 4],
        body: u64,
        end: u64,
    ) -> Result<(), Problem> {
        const FIELDS: usize = 32;
        if !matches!(
            &kind,
            b"mvhd" | b"tkhd" | b"mdhd" | b"hdlr" | b"stsd" | b"elst"
        ) {
            return Ok(());
        }
        let mut bytes = source.peek(body, FIELDS.min((end - body) as usize))?;
        bytes.resize(FIELDS, 0);
        // Version 1 has wide times.
        let wide = bytes[0] == 1;
        if &kind == b"mvhd" {
            self.movie.timescale = u32_at(&bytes, if wide { 20 } else { 12 });
            return Ok(());
        }
        let Some(track) = self.movie.tracks.last_mut() else {
            return Ok(());
        };
        match &kind {
            b"tkhd" => track.id = u32_at(&bytes, if wide { 20 } else { 12 }),
            b"mdhd" => track.timescale = u32_at(&bytes, if wide { 20 } else { 12 }),
            // A second handler box, of the data, follows in QuickTime files.
            b"hdlr" if track.handler == [0; 4] => track.handler = four(&bytes, 8),
            b"stsd" => track.codec = four(&bytes, 12),
            b"elst" => {
                const MAX_EDITS: u32 = 64;
                let count = u32_at(&bytes, 4).min(MAX_EDITS) as usize;
                let width = if wide { 20 } else { 12 };
                let list = source.peek(body + 8, (count * width).min((end - body) as usize))?;
                track.edits = list
                    .chunks_exact(width)
                    .map(|e| Edit {
                        duration: if wide {
                            u64_at(e, 0)
                        } else {
                            u64::from(u32_at(e, 0))
                        },
                        from: if wide {
                            u64_at(e, 8).cast_signed()
                        } else {
                            i64::from(u32_at(e, 4).cast_signed())
                        },
                    })
                    .collect();
            }
            _ => {}
        }
        Ok(())
    }
}

/// What four letters of a sample entry stand for.
pub(super) fn codec_name(codec: [u8; 4]) -> String {
    let name = match &codec {
        b"mp4a" => "AAC or MPEG audio",
        b"ac-3" => "AC-3",
        b"ec-3" => "E-AC-3",
        b"ac-4" => "AC-4",
        b"samr" => "AMR (narrow band)",
        b"sawb" => "AMR (wide band)",
        b"QDM2" | b"QDMC" => "QDesign",
        b"agsm" => "GSM 6.10",
        b"dtsc" | b"dtsh" | b"dtsl" | b"dtse" => "DTS",
        b"mlpa" => "TrueHD",
        b"spex" => "Speex",
        b"enca" => "encrypted audio",
        b"ima4" => "IMA ADPCM",
        _ => return format!("codec {:?}", String::from_utf8_lossy(&codec)),
    };
    name.to_owned()
}

fn four(bytes: &[u8], at: usize) -> [u8; 4] {
    [bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(four(bytes, at))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from(u32_at(bytes, at)) << 32 | u64::from(u32_at(bytes, at + 4))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(kind: &[u8; 4], body: &[u8]) -> Vec<u8> {
        let mut all = ((body.len() + 8) as u32).to_be_bytes().to_vec();
        all.extend(kind);
        all.extend(body);
        all
    }

    fn words(words: &[u32]) -> Vec<u8> {
        words.iter().flat_map(|w| w.to_be_bytes()).collect()
    }

    fn movie(edits: &[[u32; 3]]) -> Vec<u8> {
        let mut list = words(&[0, edits.len() as u32]);
        for edit in edits {
            list.extend(words(edit));
        }
        let edits = part(b"edts", &part(b"elst", &list));
        let media = [
            part(b"mdhd", &words(&[0, 0, 0, 44_100, 0])),
            part(b"hdlr", b"\0\0\0\0\0\0\0\0soun"),
            part(
                b"minf",
                &part(b"stbl", &part(b"stsd", b"\0\0\0\0\0\0\0\x01\0\0\0\x10mp4a")),
            ),
        ]
        .concat();
        let track = [
            part(b"tkhd", &words(&[0, 0, 0, 7, 0])),
            edits,
            part(b"mdia", &media),
        ]
        .concat();
        let header = part(b"mvhd", &words(&[0, 0, 0, 1000, 0]));
        part(b"moov", &[header, part(b"trak", &track)].concat())
    }

    fn read(bytes: Vec<u8>) -> Result<Movie, Problem> {
        scan(&mut Source::memory(bytes, u64::MAX).unwrap())
    }

    #[test]
    fn edits_become_frames() {
        let movie = read(movie(&[[1000, 1024, 1 << 16]])).unwrap();
        assert_eq!(&movie.tracks[0].handler, b"soun");
        assert_eq!(&movie.tracks[0].codec, b"mp4a");
        assert_eq!(movie.trim(7, 44_100, None), (1024, Some(44_100)));
        // The packets say 20 frames more, less than a millisecond; and 5000 more, which is padding.
        assert_eq!(movie.trim(7, 44_100, Some(45_144)), (1024, Some(44_120)));
        assert_eq!(movie.trim(7, 44_100, Some(50_124)), (1024, Some(44_100)));
        assert_eq!(movie.trim(7, 22_050, None), (512, Some(22_050)));
        assert_eq!(movie.trim(8, 44_100, None), (0, None));
    }

    #[test]
    fn pauses_and_parts_are_no_padding() {
        let movie = read(movie(&[[50, u32::MAX, 1 << 16], [0, 100, 1 << 16]])).unwrap();
        assert_eq!(movie.trim(7, 44_100, None), (100, None));
    }

    #[test]
    fn runs_have_room_in_the_file() {
        let file = |flags: u32, samples: u32, room: usize| {
            let mut run = words(&[flags, samples]);
            run.resize(8 + room, 0);
            let fragment = part(b"moof", &part(b"traf", &part(b"trun", &run)));
            read([movie(&[]), fragment].concat())
        };
        assert!(file(0x300, 3, 24).is_ok());
        assert!(matches!(file(0x300, 4, 24), Err(Problem::Damaged(_))));
        // Samples of the default size take a byte at least.
        assert!(file(0, 100, 0).is_ok());
        assert!(matches!(file(0, u32::MAX, 0), Err(Problem::Damaged(_))));
    }

    #[test]
    fn no_index_and_bad_boxes() {
        assert!(matches!(
            read(part(b"mdat", &[0; 100])),
            Err(Problem::CutShort(_))
        ));
        let mut small = part(b"mdat", &[0; 8]);
        small[3] = 4;
        assert!(matches!(read(small), Err(Problem::Damaged(_))));
    }
}
