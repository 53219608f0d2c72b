//! The pages of a damaged file, read without the engine: its pages may contradict each other, and the engine
//! panics or gives up on the first one that does.
//!
//! The format is that of redb (version 3, described in its source). Each pointer to a page has the page's
//! XXH3 checksum beside it. So a page whose pointer is wrong is found by its checksum, and one wrong byte in the
//! part of a page that says where things lie is put right. Values are never put right: each record has a checksum of
//! its own, and who reads the record decides.
use std::collections::{BTreeSet, HashMap};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use xxhash_rust::xxh3::xxh3_128;

const MAGIC: [u8; 9] = *b"redb\x1a\x0a\xa9\x0d\x0a";
const PAGE: usize = 4096;
/// Pages of a region, where the header does not say: the engine's default, 4 GiB.
const REGION_PAGES: u64 = 1 << 20;
const GOD_BYTE: usize = 9;
const UNCLEAN: u8 = 2;
const SLOTS: [usize; 2] = [64, 192];
const SLOT: usize = 128;
const HEADER: usize = 320;
/// A pointer is page number, checksum, length.
const POINTER: usize = 32;
const USER_ROOT: usize = 8;
const TRANSACTION: usize = 104;
const LEAF: u8 = 1;
const BRANCH: u8 = 2;
/// Deeper than any tree of a file that fits a disk.
const DEPTH_MAX: usize = 64;
/// Bytes of a page in which one wrong byte is looked for; what lies behind them is values.
const HEAL_MAX: usize = 4 * PAGE;
/// Pages in which a wrong bit is looked for at most, and of these in which any wrong byte is: the latter costs up to a
/// second, and a start has to end.
const BITS_TRIED_MAX: usize = 64;
const BYTES_TRIED_MAX: usize = 8;

/// A pointer to a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Pointer {
    number: u64,
    checksum: u128,
}

/// One commit, as a slot of the header tells of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Slot {
    transaction: u64,
    root: Option<Pointer>,
}

/// The header of a file: which commits there are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Header {
    /// The process that wrote it closed it.
    pub(super) is_closed: bool,
    /// The newest commit first; those whose checksum is good.
    pub(super) slots: Vec<Slot>,
    /// The byte that says which commit counts names an older one.
    pub(super) is_behind: bool,
    region_pages: u64,
    region_header_pages: u64,
}

/// A file whose pages are read one by one.
pub(super) struct Pages {
    file: File,
    len: u64,
    pub(super) header: Header,
    /// Where pages lie, by their checksums; made when the first is missed.
    by_checksum: Option<HashMap<u128, (u64, usize)>>,
    tried: usize,
    /// Pages that are not what their pointers say; what could be read of them was.
    pub(super) damaged: u64,
    /// Of these, such as one byte does not explain.
    pub(super) unhealed: u64,
    /// Pages that cannot be read at all, with everything below them.
    pub(super) lost: u64,
}

/// A page that was read.
struct Page {
    bytes: Vec<u8>,
}

/// Takes a record of a table: key and value.
pub(super) type Take<'a> = &'a mut dyn FnMut(&[u8], &[u8]);

impl Header {
    /// Reads the header; `None` where no commit can be read from it.
    pub(super) fn read(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; HEADER] = bytes.first_chunk()?;
        let is_known = bytes[..MAGIC.len()] == MAGIC;
        let field = |at: usize| u64::from(u32_at(bytes, at).unwrap_or_default());
        let (header_pages, region_pages) = (field(16), field(20));
        let fits = (1..=REGION_PAGES).contains(&region_pages) && header_pages <= REGION_PAGES;
        let (region_header_pages, region_pages) =
            if fits { (header_pages, region_pages) } else { (0, REGION_PAGES) };
        let read = SLOTS.map(|at| Slot::read(&bytes[at..at + SLOT]));
        let primary = usize::from(bytes[GOD_BYTE] & 1);
        let is_behind = match (&read[primary], &read[1 - primary]) {
            (Some(named), Some(other)) => named.transaction < other.transaction,
            (None, Some(_)) => true,
            (_, None) => false,
        };
        let mut slots: Vec<Slot> = read.into_iter().flatten().collect();
        slots.sort_by_key(|slot| std::cmp::Reverse(slot.transaction));
        let is_closed = is_known && bytes[GOD_BYTE] & UNCLEAN == 0;
        (!slots.is_empty()).then_some(Self { is_closed, slots, is_behind, region_pages, region_header_pages })
    }

    /// The newest commit.
    pub(super) fn newest(&self) -> Option<&Slot> {
        self.slots.first()
    }
}

impl Slot {
    fn read(bytes: &[u8]) -> Option<Self> {
        let (body, sum) = bytes.split_at_checked(SLOT - 16)?;
        let sum = u128::from_le_bytes(*sum.first_chunk()?);
        let mut body = body.to_vec();
        let end = body.len();
        if xxh3_128(&body) != sum && !heal_byte(&mut body, end, |bytes| xxh3_128(bytes) == sum) {
            return None;
        }
        let root = (body[1] != 0).then(|| Pointer::read(&body[USER_ROOT..])).flatten();
        Some(Self { transaction: u64_at(&body, TRANSACTION)?, root })
    }

    /// Whether two commits have the same tables.
    pub(super) fn is_like(&self, other: &Self) -> bool {
        self.root == other.root
    }
}

impl Pointer {
    fn read(bytes: &[u8]) -> Option<Self> {
        Some(Self { number: u64_at(bytes, 0)?, checksum: u128_at(bytes, 8)? })
    }
}

impl Page {
    fn count(&self) -> usize {
        self.bytes.get(2..4).map_or(0, |two| usize::from(u16::from_le_bytes([two[0], two[1]])))
    }

    /// Where the part ends that says where things lie, keys included.
    fn table_end(&self) -> Option<usize> {
        let count = self.count();
        match *self.bytes.first()? {
            LEAF => Some(u32_at(&self.bytes, 4 + 4 * count.checked_sub(1)?)? as usize),
            BRANCH => self.end(),
            _ => None,
        }
    }

    /// Where its checksum ends.
    fn end(&self) -> Option<usize> {
        end_of(&self.bytes)
    }

    /// The records of a leaf that can be told apart.
    fn records(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        let count = self.count();
        let start = 4 + 8 * count;
        let key_end = move |n: usize| u32_at(&self.bytes, 4 + 4 * n).map(|end| end as usize);
        let value_end = move |n: usize| u32_at(&self.bytes, 4 + 4 * count + 4 * n).map(|end| end as usize);
        (0..count).filter_map(move |n| {
            let key = if n == 0 { start } else { key_end(n - 1)? }..key_end(n)?;
            let first = if n == 0 { key_end(count - 1)? } else { value_end(n - 1)? };
            Some((self.bytes.get(key)?, self.bytes.get(first..value_end(n)?)?))
        })
    }

    /// The pages below a branch.
    fn children(&self) -> Vec<Pointer> {
        let count = self.count() + 1;
        let child = |n: usize| {
            let checksum = u128_at(&self.bytes, 8 + 16 * n)?;
            Some(Pointer { number: u64_at(&self.bytes, 8 + 16 * count + 8 * n)?, checksum })
        };
        (0..count).map_while(child).collect()
    }
}

impl Pages {
    /// Opens a file; `None` where its root is gone.
    pub(super) fn open(path: &Path) -> io::Result<Option<Self>> {
        let file = File::open(path)?;
        let len = file.metadata()?.len();
        let mut bytes = [0; HEADER];
        if len < HEADER as u64 {
            return Ok(None);
        }
        file.read_exact_at(&mut bytes, 0)?;
        let Some(header) = Header::read(&bytes) else { return Ok(None) };
        Ok(Some(Self { file, len, header, by_checksum: None, tried: 0, damaged: 0, unhealed: 0, lost: 0 }))
    }

    /// The records of a table as of a commit, in the order of the tree; false if there is no such table.
    pub(super) fn table(&mut self, slot: &Slot, name: &str, take: Take<'_>) -> io::Result<bool> {
        let Some(root) = slot.root else { return Ok(false) };
        let mut found = None;
        self.walk(root, true, &mut |key, value| {
            if key == name.as_bytes() {
                found = Some(value.to_vec());
            }
        })?;
        // Kind of table, number of records, whether it has any; then the root.
        let Some(definition) = found else { return Ok(false) };
        let root = definition.get(10..10 + POINTER).and_then(Pointer::read);
        if let (Some(1..), Some(root)) = (definition.get(9), root) {
            self.walk(root, false, take)?;
        }
        Ok(true)
    }

    /// Whether every page of a commit is what its pointer says, or was before one byte of it changed.
    pub(super) fn is_readable(&mut self, slot: &Slot, names: &[&str]) -> io::Result<bool> {
        for name in names {
            self.table(slot, name, &mut |_, _| {})?;
        }
        Ok(self.lost == 0)
    }

    fn walk(&mut self, root: Pointer, structure: bool, take: Take<'_>) -> io::Result<()> {
        let (mut stack, mut seen) = (vec![(root, 0)], BTreeSet::new());
        while let Some((pointer, depth)) = stack.pop() {
            let Some(page) = self.page(pointer, structure)? else {
                self.lost += 1;
                continue;
            };
            match page.bytes.first() {
                Some(&LEAF) => page.records().for_each(|(key, value)| take(key, value)),
                Some(&BRANCH) if depth < DEPTH_MAX => {
                    let new = |child: &Pointer| seen.insert((child.number, child.checksum));
                    let children = page.children().into_iter().rev().filter(new);
                    stack.extend(children.map(|child| (child, depth + 1)));
                }
                Some(_) | None => self.lost += 1,
            }
        }
        Ok(())
    }

    /// Reads a page: where its pointer says, or where its checksum is found; put right where that can be done;
    /// else as it is, if it is a page at all.
    fn page(&mut self, pointer: Pointer, structure: bool) -> io::Result<Option<Page>> {
        let there = self.at(pointer)?;
        if let Some(page) = &there
            && page.is(pointer.checksum)
        {
            return Ok(there);
        }
        if let Some(page) = self.elsewhere(pointer.checksum)? {
            self.damaged += 1;
            return Ok(Some(page));
        }
        self.damaged += 1;
        let Some(mut page) = there else { return Ok(None) };
        if self.tried < BITS_TRIED_MAX {
            self.tried += 1;
            page.heal(pointer.checksum, structure, self.tried <= BYTES_TRIED_MAX);
        }
        self.unhealed += u64::from(!page.is(pointer.checksum));
        Ok(page.end().is_some().then_some(page))
    }

    fn at(&self, pointer: Pointer) -> io::Result<Option<Page>> {
        let order = pointer.number >> 59;
        if order > 20 {
            return Ok(None);
        }
        let (index, region) = (pointer.number & (0xf_ffff >> order), pointer.number >> 20 & 0xf_ffff);
        let size = PAGE as u64 * (1 << order);
        let header = &self.header;
        let region_bytes = (header.region_pages + header.region_header_pages) * PAGE as u64;
        let offset = PAGE as u64 * (1 + header.region_header_pages) + region * region_bytes + index * size;
        if offset.saturating_add(size) > self.len {
            return Ok(None);
        }
        Ok(Some(Page { bytes: self.read(offset, size as usize)? }))
    }

    fn read(&self, offset: u64, count: usize) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; count];
        self.file.read_exact_at(&mut bytes, offset)?;
        Ok(bytes)
    }

    fn elsewhere(&mut self, checksum: u128) -> io::Result<Option<Page>> {
        if self.by_checksum.is_none() {
            self.by_checksum = Some(self.survey()?);
        }
        let found = self.by_checksum.as_ref().and_then(|known| known.get(&checksum).copied());
        found.map(|(offset, count)| Ok(Page { bytes: self.read(offset, count)? })).transpose()
    }

    /// Every page of the file by its checksum.
    fn survey(&self) -> io::Result<HashMap<u128, (u64, usize)>> {
        let mut known = HashMap::new();
        let mut offset = PAGE as u64;
        while offset + PAGE as u64 <= self.len {
            let mut bytes = self.read(offset, PAGE)?;
            if let Some(end) = end_of_any(&bytes).filter(|end| offset + *end as u64 <= self.len) {
                if end > PAGE {
                    bytes = self.read(offset, end)?;
                }
                known.insert(xxh3_128(&bytes[..end]), (offset, end.max(PAGE)));
            }
            offset += PAGE as u64;
        }
        Ok(known)
    }
}

impl Page {
    fn is(&self, checksum: u128) -> bool {
        self.end().is_some_and(|end| xxh3_128(&self.bytes[..end]) == checksum)
    }

    /// Puts one wrong byte right, if that is all: anywhere in a page of the structure, and in a leaf of records only
    /// before its values.
    fn heal(&mut self, checksum: u128, structure: bool, bytes: bool) {
        let fits = |bytes: &[u8]| end_of(bytes).is_some_and(|end| xxh3_128(&bytes[..end]) == checksum);
        // First what the rest is read by: kind and number of entries.
        if heal_byte(&mut self.bytes, 4, fits) {
            return;
        }
        let end = if structure { self.end() } else { self.table_end() };
        // A table of offsets that is wrong itself may end anywhere.
        let end = end.filter(|end| *end <= self.bytes.len()).unwrap_or(PAGE).min(HEAL_MAX);
        if !heal_bit(&mut self.bytes, end, fits) && bytes {
            heal_byte(&mut self.bytes, end, fits);
        }
    }
}

/// Turns each bit of the first bytes, until it fits.
fn heal_bit(bytes: &mut [u8], end: usize, fits: impl Fn(&[u8]) -> bool) -> bool {
    for at in 0..end.min(bytes.len()) {
        for bit in 0..8 {
            bytes[at] ^= 1 << bit;
            if fits(bytes) {
                return true;
            }
            bytes[at] ^= 1 << bit;
        }
    }
    false
}

/// Tries every other value of each of the first bytes, until it fits.
fn heal_byte(bytes: &mut [u8], end: usize, fits: impl Fn(&[u8]) -> bool) -> bool {
    for at in 0..end.min(bytes.len()) {
        let was = bytes[at];
        for other in (0..=u8::MAX).filter(|other| *other != was) {
            bytes[at] = other;
            if fits(bytes) {
                return true;
            }
        }
        bytes[at] = was;
    }
    false
}

/// Where the checksum of a page ends, if it is one and has that many bytes.
fn end_of(bytes: &[u8]) -> Option<usize> {
    end_of_any(bytes).filter(|end| *end <= bytes.len())
}

fn end_of_any(bytes: &[u8]) -> Option<usize> {
    let count = usize::from(u16::from_le_bytes([*bytes.get(2)?, *bytes.get(3)?]));
    let last = match *bytes.first()? {
        LEAF => 4 + 4 * count + 4 * count.checked_sub(1)?,
        BRANCH => 8 + 24 * (count + 1) + 4 * count.checked_sub(1)?,
        _ => return None,
    };
    let end = u32_at(bytes, last)? as usize;
    (end >= last + 4).then_some(end)
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn u128_at(bytes: &[u8], at: usize) -> Option<u128> {
    Some(u128::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}
