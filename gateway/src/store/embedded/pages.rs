//! A reader of damaged redb files (format 3, described in redb's source), on which redb itself panics or fails. The
//! XXH3 checksum beside each page pointer finds misplaced pages and corrects one wrong byte in a page's structure,
//! never in values: records have checksums of their own. Used by `opening` and `salvage`.
use std::collections::{BTreeSet, HashMap};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use xxhash_rust::xxh3::xxh3_128;

const MAGIC: [u8; 9] = *b"redb\x1a\x0a\xa9\x0d\x0a";
const PAGE: usize = 4096;
/// Pages of a region if the header does not say: redb's default, 4 GiB.
const REGION_PAGES: u64 = 1 << 20;
const GOD_BYTE: usize = 9;
const UNCLEAN: u8 = 2;
const SLOTS: [usize; 2] = [64, 192];
const SLOT: usize = 128;
const HEADER: usize = 320;
/// Bytes of a pointer: page number, checksum, length.
const POINTER: usize = 32;
const USER_ROOT: usize = 8;
const TRANSACTION: usize = 104;
const LEAF: u8 = 1;
const BRANCH: u8 = 2;
/// Maximum depth; no tree of a file that fits on a disk is deeper.
const DEPTH_MAX: usize = 64;
/// Bytes of a page in which a wrong byte is searched for; the bytes behind them are values.
const REPAIR_BYTES_MAX: usize = 4 * PAGE;
/// Maximum pages in which a wrong bit, and in which any wrong byte, is searched for: the latter costs up to a second,
/// and a start has to end.
const BITS_TRIED_MAX: usize = 64;
const BYTES_TRIED_MAX: usize = 8;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Pointer {
    number: u64,
    checksum: u128,
}

/// One commit, as described by a slot of the file header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CommitSlot {
    transaction: u64,
    root: Option<Pointer>,
}

/// The file header, which lists the commits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct FileHeader {
    /// True if the process that wrote the file closed it.
    pub(super) is_closed: bool,
    /// Commits with a valid checksum, the newest first.
    pub(super) slots: Vec<CommitSlot>,
    /// True if the byte that selects the current commit names an older one.
    pub(super) selects_older_commit: bool,
    region_pages: u64,
    region_header_pages: u64,
}

/// A file whose pages are read one by one.
pub(super) struct PageReader {
    file: File,
    len: u64,
    pub(super) header: FileHeader,
    /// Offset and length of pages by checksum; built when a page is first missing.
    by_checksum: Option<HashMap<u128, (u64, usize)>>,
    repair_attempts: usize,
    /// Pages that differ from their pointers but could be read.
    pub(super) damaged: u64,
    /// Damaged pages that one wrong byte does not explain.
    pub(super) unrepaired: u64,
    /// Pages that cannot be read at all; everything below them is lost as well.
    pub(super) lost: u64,
}

/// The bytes of one page.
struct RawPage {
    bytes: Vec<u8>,
}

/// A callback that receives key and value of each record of a table.
pub(super) type RecordVisitor<'a> = &'a mut dyn FnMut(&[u8], &[u8]);

impl FileHeader {
    /// Reads the header; `None` if no commit can be read from it.
    pub(super) fn read(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; HEADER] = bytes.first_chunk()?;
        let is_known = bytes[..MAGIC.len()] == MAGIC;
        let field = |at: usize| u64::from(u32_at(bytes, at).unwrap_or_default());
        let header_pages = field(16);
        let region_pages = field(20);
        let fits = (1..=REGION_PAGES).contains(&region_pages) && header_pages <= REGION_PAGES;
        let (region_header_pages, region_pages) = if fits { (header_pages, region_pages) } else { (0, REGION_PAGES) };
        let read = SLOTS.map(|at| CommitSlot::read(&bytes[at..at + SLOT]));
        let primary = usize::from(bytes[GOD_BYTE] & 1);
        let is_behind = match (&read[primary], &read[1 - primary]) {
            (Some(named), Some(other)) => named.transaction < other.transaction,
            (None, Some(_)) => true,
            (_, None) => false,
        };
        let mut slots: Vec<CommitSlot> = read.into_iter().flatten().collect();
        slots.sort_by_key(|slot| std::cmp::Reverse(slot.transaction));
        let is_closed = is_known && bytes[GOD_BYTE] & UNCLEAN == 0;
        (!slots.is_empty()).then_some(Self {
            is_closed,
            slots,
            selects_older_commit: is_behind,
            region_pages,
            region_header_pages,
        })
    }

    /// Returns the newest commit.
    pub(super) fn newest(&self) -> Option<&CommitSlot> {
        self.slots.first()
    }
}

impl CommitSlot {
    fn read(bytes: &[u8]) -> Option<Self> {
        let (body, sum) = bytes.split_at_checked(SLOT - 16)?;
        let sum = u128::from_le_bytes(*sum.first_chunk()?);
        let mut body = body.to_vec();
        let end = body.len();
        if xxh3_128(&body) != sum && !repair_byte(&mut body, end, |bytes| xxh3_128(bytes) == sum) {
            return None;
        }
        let root = (body[1] != 0).then(|| Pointer::read(&body[USER_ROOT..])).flatten();
        Some(Self { transaction: u64_at(&body, TRANSACTION)?, root })
    }

    /// Returns whether two commits have the same tables.
    pub(super) fn has_same_root(&self, other: &Self) -> bool {
        self.root == other.root
    }
}

impl Pointer {
    fn read(bytes: &[u8]) -> Option<Self> {
        Some(Self { number: u64_at(bytes, 0)?, checksum: u128_at(bytes, 8)? })
    }
}

impl RawPage {
    fn count(&self) -> usize {
        self.bytes.get(2..4).map_or(0, |two| usize::from(u16::from_le_bytes([two[0], two[1]])))
    }

    /// Returns the end of the page's offset table and keys, the part that locates the values.
    fn structure_end(&self) -> Option<usize> {
        let count = self.count();
        match *self.bytes.first()? {
            LEAF => Some(u32_at(&self.bytes, 4 + 4 * count.checked_sub(1)?)? as usize),
            BRANCH => self.checksum_end(),
            _ => None,
        }
    }

    /// Returns the end of the bytes that the page's checksum covers.
    fn checksum_end(&self) -> Option<usize> {
        end_of(&self.bytes)
    }

    /// Returns the records of a leaf whose bounds are valid.
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

    /// Returns pointers to the pages below a branch.
    fn children(&self) -> Vec<Pointer> {
        let count = self.count() + 1;
        let child = |n: usize| {
            let checksum = u128_at(&self.bytes, 8 + 16 * n)?;
            Some(Pointer { number: u64_at(&self.bytes, 8 + 16 * count + 8 * n)?, checksum })
        };
        (0..count).map_while(child).collect()
    }
}

impl PageReader {
    /// Opens a file; `None` if its header has no readable commit.
    pub(super) fn open(path: &Path) -> io::Result<Option<Self>> {
        let file = File::open(path)?;
        let len = file.metadata()?.len();
        let mut bytes = [0; HEADER];
        if len < HEADER as u64 {
            return Ok(None);
        }
        file.read_exact_at(&mut bytes, 0)?;
        let Some(header) = FileHeader::read(&bytes) else { return Ok(None) };
        Ok(Some(Self { file, len, header, by_checksum: None, repair_attempts: 0, damaged: 0, unrepaired: 0, lost: 0 }))
    }

    /// Passes the records of a table as of a commit to `take`, in the tree's order. Returns false if there is no such
    /// table.
    pub(super) fn visit_table(&mut self, slot: &CommitSlot, name: &str, take: RecordVisitor<'_>) -> io::Result<bool> {
        let Some(root) = slot.root else { return Ok(false) };
        let mut found = None;
        self.walk(root, true, &mut |key, value| {
            if key == name.as_bytes() {
                found = Some(value.to_vec());
            }
        })?;
        // A table definition holds the kind of table, the number of records, and a flag for a root; then the root.
        let Some(definition) = found else { return Ok(false) };
        let root = definition.get(10..10 + POINTER).and_then(Pointer::read);
        if let (Some(1..), Some(root)) = (definition.get(9), root) {
            self.walk(root, false, take)?;
        }
        Ok(true)
    }

    /// Returns whether every page of a commit matches its pointer, or did before one byte changed.
    pub(super) fn is_readable(&mut self, slot: &CommitSlot, names: &[&str]) -> io::Result<bool> {
        for name in names {
            self.visit_table(slot, name, &mut |_, _| {})?;
        }
        Ok(self.lost == 0)
    }

    fn walk(&mut self, root: Pointer, structure: bool, take: RecordVisitor<'_>) -> io::Result<()> {
        let mut stack = vec![(root, 0)];
        let mut seen = BTreeSet::new();
        while let Some((pointer, depth)) = stack.pop() {
            let Some(page) = self.load_page(pointer, structure)? else {
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

    /// Reads the page at its pointer's place or wherever its checksum is found, corrected if possible; otherwise as
    /// it is, if it has the form of a page.
    fn load_page(&mut self, pointer: Pointer, structure: bool) -> io::Result<Option<RawPage>> {
        let there = self.read_at_pointer(pointer)?;
        if let Some(page) = &there
            && page.matches(pointer.checksum)
        {
            return Ok(there);
        }
        if let Some(page) = self.find_by_checksum(pointer.checksum)? {
            self.damaged += 1;
            return Ok(Some(page));
        }
        self.damaged += 1;
        let Some(mut page) = there else { return Ok(None) };
        if self.repair_attempts < BITS_TRIED_MAX {
            self.repair_attempts += 1;
            page.repair(pointer.checksum, structure, self.repair_attempts <= BYTES_TRIED_MAX);
        }
        self.unrepaired += u64::from(!page.matches(pointer.checksum));
        Ok(page.checksum_end().is_some().then_some(page))
    }

    fn read_at_pointer(&self, pointer: Pointer) -> io::Result<Option<RawPage>> {
        let order = pointer.number >> 59;
        if order > 20 {
            return Ok(None);
        }
        let index = pointer.number & (0xf_ffff >> order);
        let region = pointer.number >> 20 & 0xf_ffff;
        let size = PAGE as u64 * (1 << order);
        let header = &self.header;
        let region_bytes = (header.region_pages + header.region_header_pages) * PAGE as u64;
        let offset = PAGE as u64 * (1 + header.region_header_pages) + region * region_bytes + index * size;
        if offset.saturating_add(size) > self.len {
            return Ok(None);
        }
        Ok(Some(RawPage { bytes: self.read(offset, size as usize)? }))
    }

    fn read(&self, offset: u64, count: usize) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; count];
        self.file.read_exact_at(&mut bytes, offset)?;
        Ok(bytes)
    }

    fn find_by_checksum(&mut self, checksum: u128) -> io::Result<Option<RawPage>> {
        if self.by_checksum.is_none() {
            self.by_checksum = Some(self.index_by_checksum()?);
        }
        let found = self.by_checksum.as_ref().and_then(|known| known.get(&checksum).copied());
        found.map(|(offset, count)| Ok(RawPage { bytes: self.read(offset, count)? })).transpose()
    }

    /// Returns every page of the file by its checksum.
    fn index_by_checksum(&self) -> io::Result<HashMap<u128, (u64, usize)>> {
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

impl RawPage {
    fn matches(&self, checksum: u128) -> bool {
        self.checksum_end().is_some_and(|end| xxh3_128(&self.bytes[..end]) == checksum)
    }

    /// Corrects one wrong byte if that restores the checksum: anywhere in a page of the structure, but only before
    /// the values in a leaf of records.
    fn repair(&mut self, checksum: u128, structure: bool, bytes: bool) {
        let fits = |bytes: &[u8]| end_of(bytes).is_some_and(|end| xxh3_128(&bytes[..end]) == checksum);
        // Kind and number of entries come first, because the rest is read by them.
        if repair_byte(&mut self.bytes, 4, fits) {
            return;
        }
        let end = if structure { self.checksum_end() } else { self.structure_end() };
        // A damaged offset table may give any end.
        let end = end.filter(|end| *end <= self.bytes.len()).unwrap_or(PAGE).min(REPAIR_BYTES_MAX);
        if !repair_bit(&mut self.bytes, end, fits) && bytes {
            repair_byte(&mut self.bytes, end, fits);
        }
    }
}

/// Flips each bit of the first `end` bytes until `fits` accepts the page.
fn repair_bit(bytes: &mut [u8], end: usize, fits: impl Fn(&[u8]) -> bool) -> bool {
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

/// Tries every other value of each of the first `end` bytes until `fits` accepts the page.
fn repair_byte(bytes: &mut [u8], end: usize, fits: impl Fn(&[u8]) -> bool) -> bool {
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

/// Returns the end of the bytes that the checksum covers, if the bytes are a page and long enough.
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Sizes of the test file in pages: a file header, then regions of header pages and data pages.
    const REGIONS: u64 = 2;
    const REGION_HEADER: u64 = 2;
    const REGION_DATA: u64 = 4;
    const PAGES: u64 = 1 + REGIONS * (REGION_HEADER + REGION_DATA);

    /// Returns a reader of a file in which every byte is the number of its page.
    fn numbered_pages(path: &Path) -> PageReader {
        let bytes: Vec<u8> = (0..PAGES).flat_map(|n| [n as u8; PAGE]).collect();
        std::fs::write(path, bytes).expect("written");
        let header = FileHeader {
            is_closed: true,
            slots: Vec::new(),
            selects_older_commit: false,
            region_pages: REGION_DATA,
            region_header_pages: REGION_HEADER,
        };
        let file = File::open(path).expect("opened");
        let len = PAGES * PAGE as u64;
        PageReader { file, len, header, by_checksum: None, repair_attempts: 0, damaged: 0, unrepaired: 0, lost: 0 }
    }

    #[test]
    fn page_pointer_is_followed_into_every_region() {
        let path = std::env::temp_dir().join(format!("turnway-pages-{}", std::process::id()));
        let pages = numbered_pages(&path);
        let read = |order: u64, region: u64, index: u64| {
            let pointer = Pointer { number: order << 59 | region << 20 | index, checksum: 0 };
            let page = pages.read_at_pointer(pointer).expect("read");
            page.map(|page| (page.bytes.len() / PAGE, page.bytes.first().copied(), page.bytes.last().copied()))
        };
        let pages_of = |first: u8, last: u8| Some((usize::from(last - first) + 1, Some(first), Some(last)));
        assert_eq!(read(0, 0, 0), pages_of(3, 3), "after the headers of the file and of the region");
        assert_eq!(read(0, 0, 3), pages_of(6, 6));
        assert_eq!(read(0, 1, 0), pages_of(9, 9), "after the first region and the second one's header");
        assert_eq!(read(0, 1, 3), pages_of(12, 12), "the last page of the file");
        assert_eq!(read(1, 0, 1), pages_of(5, 6), "a page of twice the size");
        assert_eq!(read(1, 1, 1), pages_of(11, 12));
        assert_eq!(read(2, 1, 0), pages_of(9, 12));
        for (order, region, index) in [(0, 1, 4), (1, 1, 2), (0, 2, 0), (3, 1, 0), (21, 0, 0)] {
            assert_eq!(read(order, region, index), None, "{order} {region} {index} lies outside of the file");
        }
        std::fs::remove_file(&path).expect("removed");
    }
}
