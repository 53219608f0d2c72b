//! Splits a long Markdown text into messages that a platform accepts, with fenced code blocks, code spans and links
//! kept whole where possible (CommonMark 0.31). Does not render or change the text. Called when an answer is delivered.
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;

/// Smaller limits are raised to this one, so that fences leave room for content.
pub(super) const LIMIT_MIN: usize = 64;
/// Larger limits are lowered to this one, so that multiples of a limit do not overflow.
const LIMIT_MAX: usize = usize::MAX / 8;
/// Characters of the shortest fence (CommonMark §4.5).
const FENCE_MIN: usize = 3;
/// A line that is indented by more spaces is not a fence (CommonMark §4.5).
const FENCE_INDENT_MAX: usize = 3;
/// Characters of a long info string that are repeated when its block is opened again.
const REPEATED_INFO_CHARS: usize = 32;
const ZERO_WIDTH_JOINER: char = '\u{200D}';

/// The unit in which a platform counts the length of a message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TextUnit {
    /// Unicode code points.
    Chars,
    /// UTF-16 code units: a character beyond U+FFFF counts as two.
    #[default]
    Utf16,
    /// Bytes of the UTF-8 form.
    Bytes,
}

impl TextUnit {
    /// All units, for parsers and the schema.
    pub const ALL: [Self; 3] = [Self::Chars, Self::Utf16, Self::Bytes];

    /// Returns the name on the wire.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Chars => "chars",
            Self::Utf16 => "utf16",
            Self::Bytes => "bytes",
        }
    }

    /// Returns the length of a text in this unit.
    pub fn length(self, text: &str) -> usize {
        match self {
            Self::Chars => text.chars().count(),
            Self::Utf16 => text.chars().map(char::len_utf16).sum(),
            Self::Bytes => text.len(),
        }
    }

    fn length_of_char(self, c: char) -> usize {
        match self {
            Self::Chars => 1,
            Self::Utf16 => c.len_utf16(),
            Self::Bytes => c.len_utf8(),
        }
    }
}

/// Splits a Markdown text into parts of at most `max` units each; a `max` below 64 counts as 64.
///
/// The parts contain the whole text, except whitespace around it and at the cuts. In a fenced code block a cut drops at
/// most one line ending; the part is closed with the block's fence, and the next part opens the block again. No part is
/// blank, so a blank text has no parts. A fence of more than about 3/8 of `max` characters is treated as plain text.
pub fn split_text(text: &str, max: usize, unit: TextUnit) -> Vec<String> {
    let layout = MarkdownLayout::new(text.trim_end(), max.clamp(LIMIT_MIN, LIMIT_MAX), unit);
    let mut parts = Vec::new();
    let mut start = layout.next_start(0);
    let mut is_after_short_part = false;
    while start < layout.text.len() {
        let cut = CutSearch::new(&layout, start, is_after_short_part).run();
        parts.push(layout.part(start, cut.end));
        is_after_short_part = cut.is_short;
        start = cut.next_start;
    }
    parts
}

/// The characters at the start of a line that open or close a fenced code block. All of them are ASCII, so the length
/// is the same in each unit.
#[derive(Clone, Copy)]
pub(super) struct CodeFence {
    mark: char,
    count: usize,
    indent: usize,
}

impl CodeFence {
    /// Parses a line that starts with a fence; returns the rest of the line, too.
    fn parse(line: &str) -> Option<(Self, &str)> {
        let unindented = line.trim_start_matches(' ');
        let mark = unindented.chars().next().filter(|c| is_fence_mark(*c))?;
        let rest = unindented.trim_start_matches(mark);
        let fence = Self { mark, count: unindented.len() - rest.len(), indent: line.len() - unindented.len() };
        (fence.count >= FENCE_MIN && fence.indent <= FENCE_INDENT_MAX).then_some((fence, rest))
    }

    /// Parses a line that opens a block.
    pub(super) fn opening(line: &str) -> Option<Self> {
        let (fence, info) = Self::parse(line)?;
        fence.allows_info(info).then_some(fence)
    }

    /// Parses a line that closes the block which `self` opened.
    pub(super) fn closing(self, line: &str) -> Option<Self> {
        let (fence, rest) = Self::parse(line)?;
        let is_closing = fence.mark == self.mark && fence.count >= self.count && rest.chars().all(is_space);
        is_closing.then_some(fence)
    }

    /// Returns whether the info string may follow: after backticks it has no backtick.
    fn allows_info(self, info: &str) -> bool {
        self.mark != '`' || !info.contains('`')
    }

    fn len(self) -> usize {
        self.indent + self.count
    }

    /// Appends the fence with its indentation, which keeps a block of a list item in that item.
    pub(super) fn push_to(self, part: &mut String) {
        part.extend(std::iter::repeat_n(' ', self.indent));
        part.extend(std::iter::repeat_n(self.mark, self.count));
    }
}

fn is_fence_mark(c: char) -> bool {
    matches!(c, '`' | '~')
}

fn is_space(c: char) -> bool {
    matches!(c, ' ' | '\t')
}

fn is_line_ending(c: char) -> bool {
    matches!(c, '\n' | '\r')
}

/// Returns whether a character continues the grapheme before it.
fn continues_grapheme(c: char) -> bool {
    matches!(c, ZERO_WIDTH_JOINER | '\u{1F3FB}'..='\u{1F3FF}' | '\u{FE00}'..='\u{FE0F}' | '\u{0300}'..='\u{036F}'
        | '\u{20D0}'..='\u{20FF}' | '\u{E0020}'..='\u{E007F}')
}

/// Returns whether a character is half of a flag.
fn is_regional_indicator(c: char) -> bool {
    matches!(c, '\u{1F1E6}'..='\u{1F1FF}')
}

/// A fenced code block. Positions are bytes of the text.
struct FencedBlock {
    fence: CodeFence,
    /// Start of the opening line.
    open: usize,
    /// End of the opening fence, which is the start of the info string.
    body: usize,
    /// The first visible character of the info string.
    info_start: usize,
    info_end: usize,
    /// The first visible character after the info string.
    code_start: usize,
    /// End of the last visible character of the code, or of the info string if there is no code.
    code_end: usize,
    /// Start of the closing line; `usize::MAX` if there is none.
    close: usize,
    /// End of the closing fence; `usize::MAX` if there is none.
    end: usize,
    /// The line that opens the block again.
    reopening: String,
    /// The opening line takes more than half of a part, so the info string is cut like content.
    is_info_long: bool,
}

impl FencedBlock {
    /// Returns whether the block may be cut at a position after its start: not in a fence, and not in a short info
    /// string.
    fn allows_cut(&self, at: usize) -> bool {
        (self.body..self.close).contains(&at) && (at >= self.info_end || self.is_info_long)
    }
}

/// The structure of the whole text that decides where cuts are good.
struct MarkdownLayout<'a> {
    text: &'a str,
    max: usize,
    unit: TextUnit,
    /// In the order of the text.
    blocks: Vec<FencedBlock>,
    /// Code spans and links, in the order of the text, without overlap.
    spans: Vec<Range<usize>>,
    /// For each byte: whether the rest of its line would be a fence if a part started there.
    is_fence_like: Vec<bool>,
}

impl<'a> MarkdownLayout<'a> {
    fn new(text: &'a str, max: usize, unit: TextUnit) -> Self {
        let is_fence_like = vec![false; text.len() + 1];
        let mut layout = Self { text, max, unit, blocks: Vec::new(), spans: Vec::new(), is_fence_like };
        let mut open: Option<FencedBlock> = None;
        let mut paragraph = 0..0;
        for line in lines_of(text) {
            let content = &text[line.clone()];
            if let Some(mut block) = open.take() {
                if let Some(closing) = block.fence.closing(content) {
                    block.close = line.start;
                    block.end = line.start + layout.closing_len(block.fence, closing);
                    layout.push_block(block);
                    layout.mark_openings(line);
                } else {
                    layout.mark_closings(line, block.fence);
                    open = Some(block);
                }
            } else if let Some(block) = layout.parse_opening(line.clone()) {
                layout.mark_closings(block.body..line.end, block.fence);
                layout.push_spans(std::mem::take(&mut paragraph));
                open = Some(block);
            } else {
                layout.mark_openings(line.clone());
                if starts_paragraph(content) || paragraph.is_empty() {
                    layout.push_spans(std::mem::replace(&mut paragraph, line));
                } else {
                    paragraph.end = line.end;
                }
            }
        }
        layout.push_spans(paragraph);
        if let Some(block) = open {
            layout.push_block(block);
        }
        layout
    }

    /// Returns the block that a line opens. A fence that would fill most of a part, opened and closed, opens none.
    fn parse_opening(&self, line: Range<usize>) -> Option<FencedBlock> {
        let content = &self.text[line.clone()];
        let fence = CodeFence::opening(content).filter(|fence| 2 * fence.len() + 2 <= self.max * 3 / 4)?;
        let info = &content[fence.len()..];
        Some(FencedBlock {
            fence,
            open: line.start,
            body: line.start + fence.len(),
            info_start: line.end - info.trim_start().len(),
            info_end: line.end,
            code_start: self.text.len(),
            code_end: self.text.len(),
            close: usize::MAX,
            end: usize::MAX,
            reopening: self.reopening(content, fence),
            is_info_long: self.unit.length(content) * 2 > self.max,
        })
    }

    fn push_block(&mut self, mut block: FencedBlock) {
        let text = self.text.get(..block.close).unwrap_or(self.text);
        block.code_start = text.len() - text[block.info_end..].trim_start().len();
        block.code_end = block.body + text[block.body..].trim_end().len();
        self.blocks.push(block);
    }

    /// Returns the opening line, or a short form of it if the line leaves less than half of a part for content.
    fn reopening(&self, line: &str, fence: CodeFence) -> String {
        if (self.unit.length(line) + fence.len() + 2) * 2 <= self.max {
            return line.to_owned();
        }
        let info = &line[fence.len()..];
        let word = info.split_whitespace().next().unwrap_or_default();
        let space = info.chars().next().filter(|c| c.is_whitespace()).map(|_| ' ');
        let mut short = String::new();
        fence.push_to(&mut short);
        let mut room = (self.max * 3 / 4).saturating_sub(2 * fence.len() + 2);
        for c in space.into_iter().chain(word.chars().take(REPEATED_INFO_CHARS)) {
            let Some(left) = room.checked_sub(self.unit.length_of_char(c)) else { break };
            short.push(c);
            room = left;
        }
        short
    }

    /// Returns the length of a closing fence that is not cut. A fence that does not fit into a part with a reopened
    /// block is cut after the characters that are needed to close the block.
    fn closing_len(&self, opening: CodeFence, closing: CodeFence) -> usize {
        if closing.len() + 2 <= self.max / 4 + opening.len() { closing.len() } else { closing.indent + opening.count }
    }

    /// Marks the positions in a line of text at which the rest of the line would open a block.
    fn mark_openings(&mut self, line: Range<usize>) {
        let content = &self.text[line.clone()];
        let last_backtick = content.rfind('`').unwrap_or_default();
        let mut at = 0;
        while let Some(found) = content[at..].find(is_fence_mark) {
            let start = at + found;
            at = start + run_length(content, start);
            let is_opening = content[start..].starts_with('~') || last_backtick < at;
            if is_opening && at - start >= FENCE_MIN {
                self.is_fence_like[line.start + start..=line.start + at - FENCE_MIN].fill(true);
            }
        }
    }

    /// Marks the positions in a line of code at which the rest of the line would close the block.
    fn mark_closings(&mut self, line: Range<usize>, fence: CodeFence) {
        let content = self.text[line.clone()].trim_end_matches(is_space);
        let before = content.trim_end_matches(fence.mark);
        if content.len() - before.len() < fence.count {
            return;
        }
        let indent = (before.len() - before.trim_end_matches(' ').len()).min(FENCE_INDENT_MAX);
        let first = line.start + before.len() - indent;
        self.is_fence_like[first..=line.start + content.len() - fence.count].fill(true);
    }

    /// Adds the code spans and links of a paragraph (CommonMark §6.1 and §6.3). Each bracket is visited once, and so is
    /// each run of backticks of a length, so the time is linear.
    fn push_spans(&mut self, paragraph: Range<usize>) {
        let Some(text) = self.text.get(..paragraph.end) else { return };
        let bytes = text.as_bytes();
        let mut runs = backtick_runs(text, paragraph.start);
        let mut brackets = Vec::new();
        // Open parentheses, with the start of the link if they hold its destination.
        let mut parentheses: Vec<Option<usize>> = Vec::new();
        let mut at = paragraph.start;
        while let Some(byte) = bytes.get(at) {
            let mut step = 1;
            match byte {
                b'\\' => step = 2,
                b'`' => {
                    step = run_length(text, at);
                    if let Some(end) = closing_run(&mut runs, step, at + step) {
                        self.spans.push(at..end);
                        step = end - at;
                    }
                }
                b'[' => brackets.push(at),
                b']' => {
                    let link = brackets.pop();
                    if link.is_some() && bytes.get(at + 1) == Some(&b'(') {
                        parentheses.push(link);
                        step = 2;
                    }
                }
                b'(' => parentheses.push(None),
                b')' => {
                    if let Some(start) = parentheses.pop().flatten() {
                        self.push_link(start, at + 1);
                    }
                }
                b'\n' | b'\r' => parentheses.clear(),
                _ => {}
            }
            at += step;
        }
    }

    /// Adds a link, or an image, in place of the spans in it.
    fn push_link(&mut self, bracket: usize, end: usize) {
        let start = if self.text[..bracket].ends_with('!') { bracket - 1 } else { bracket };
        while self.spans.pop_if(|span| span.start >= start).is_some() {}
        self.spans.push(start..end);
    }

    /// Returns the block that must be closed if a part ends here, and opened again if a part starts here.
    fn block_at(&self, at: usize) -> Option<&FencedBlock> {
        let next = self.blocks.partition_point(|block| block.end <= at);
        self.blocks.get(next).filter(|block| block.body <= at)
    }

    /// Returns where a part starts after a cut in front of whitespace of the text outside code blocks. Indentation that
    /// makes a fence plain text stays.
    fn next_start(&self, at: usize) -> usize {
        let next = self.blocks.partition_point(|block| block.open < at);
        let limit = self.blocks.get(next).map_or(self.text.len(), |block| block.open);
        let visible = limit - self.text[at..limit].trim_start().len();
        if !self.is_fence_like[visible] {
            return visible;
        }
        let spaces = self.text[at..visible].char_indices().rev().take(FENCE_INDENT_MAX + 1);
        let first = spaces.take_while(|(_, c)| !is_line_ending(*c)).last().map_or(visible, |(offset, _)| at + offset);
        let indent = &self.text[first..visible];
        let prevents_fence = indent.len() > FENCE_INDENT_MAX || indent.contains(|c| c != ' ');
        if prevents_fence { first } else { visible }
    }

    /// Returns the text of a part, with the lines that open and close a block that is cut.
    fn part(&self, start: usize, end: usize) -> String {
        let mut part = String::new();
        if let Some(block) = self.block_at(start) {
            part.push_str(&block.reopening);
            part.push('\n');
        }
        part.push_str(&self.text[start..end]);
        if let Some(block) = self.block_at(end) {
            part.push('\n');
            block.fence.push_to(&mut part);
        }
        part
    }
}

/// Returns the lines of a text without their endings, which are LF, CR or both (CommonMark §2.1).
pub(super) fn lines_of(text: &str) -> impl Iterator<Item = Range<usize>> {
    let mut next = Some(0);
    std::iter::from_fn(move || {
        let start = next?;
        let ending = text[start..].find(is_line_ending).map(|length| start + length);
        next = ending.map(|at| at + line_ending_len(&text[at..]));
        Some(start..ending.unwrap_or(text.len()))
    })
}

/// Returns the length of the line ending at the start of a text.
fn line_ending_len(text: &str) -> usize {
    if text.starts_with("\r\n") { 2 } else { 1 }
}

/// Returns whether a line ends the paragraph before it: a blank line, heading, quote, table row or list item does.
pub(super) fn starts_paragraph(line: &str) -> bool {
    let line = line.trim();
    let digits = line.trim_start_matches(|c: char| c.is_ascii_digit());
    let is_numbered = digits.len() < line.len() && (digits.starts_with(". ") || digits.starts_with(") "));
    let is_bulleted = ["- ", "* ", "+ "].iter().any(|bullet| line.starts_with(bullet));
    line.is_empty() || line.starts_with(['#', '>', '|']) || is_numbered || is_bulleted
}

/// Returns the number of characters from a byte on that are equal; the first one is ASCII.
pub(super) fn run_length(text: &str, start: usize) -> usize {
    let bytes = &text.as_bytes()[start..];
    bytes.iter().take_while(|byte| bytes.first() == Some(*byte)).count()
}

/// Returns the starts of all runs of backticks after a position, by length.
fn backtick_runs(text: &str, from: usize) -> BTreeMap<usize, VecDeque<usize>> {
    let mut runs: BTreeMap<usize, VecDeque<usize>> = BTreeMap::new();
    let mut at = from;
    while let Some(found) = text[at..].find('`') {
        let length = run_length(text, at + found);
        runs.entry(length).or_default().push_back(at + found);
        at += found + length;
    }
    runs
}

/// Returns the end of the first run of a length after a position. Removes earlier runs, because positions only grow.
fn closing_run(runs: &mut BTreeMap<usize, VecDeque<usize>>, length: usize, after: usize) -> Option<usize> {
    let starts = runs.get_mut(&length)?;
    while starts.pop_front_if(|start| *start < after).is_some() {}
    starts.front().map(|start| start + length)
}

/// The start of a line, or of the piece of a line with which a part starts: whether the piece up to here is a fence.
#[derive(Clone, Copy)]
enum LineStart {
    /// Only spaces so far.
    Indent(usize),
    /// Spaces and a run of fence characters.
    Run(char, usize),
    /// A fence and characters that may follow it.
    Fence(char),
    /// The line is not a fence.
    Content,
}

impl LineStart {
    /// Returns the state after one more character; `block` is the fence of the block that the line may close.
    fn after(self, c: char, block: Option<CodeFence>) -> Self {
        if is_line_ending(c) {
            return Self::Indent(0);
        }
        let may_follow = |mark| if block.is_some() { is_space(c) } else { mark != '`' || c != '`' };
        match self {
            Self::Indent(spaces) if c == ' ' && spaces < FENCE_INDENT_MAX => Self::Indent(spaces + 1),
            Self::Indent(_) if is_fence_mark(c) && block.is_none_or(|fence| fence.mark == c) => Self::Run(c, 1),
            Self::Run(mark, count) if mark == c => Self::Run(mark, count + 1),
            Self::Run(mark, _) if self.is_fence(block) && may_follow(mark) => Self::Fence(mark),
            Self::Fence(mark) if may_follow(mark) => self,
            Self::Indent(_) | Self::Run(..) | Self::Fence(_) | Self::Content => Self::Content,
        }
    }

    fn is_fence(self, block: Option<CodeFence>) -> bool {
        match self {
            Self::Run(_, count) => count >= block.map_or(FENCE_MIN, |fence| fence.count),
            Self::Fence(_) => true,
            Self::Indent(_) | Self::Content => false,
        }
    }
}

/// The text around a cut, worst first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum CutPlace {
    /// After an emoji or letter that consists of several characters.
    CombinedCharacter,
    Character,
    Space,
    Sentence,
    Line,
    BlankLine,
}

/// The damage that a cut does, worst first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum CutHarm {
    /// The part is short, and so is the one before it. Without this limit, 48 KiB of backticks make thousands of parts.
    SecondShortPart,
    /// A piece of a line becomes a fence.
    NewFence,
    /// A grapheme is cut.
    Grapheme,
    /// A part ends with a code block without content, or starts with one.
    EmptyBlock,
    /// The part has less than half of the content that it has room for.
    ShortPart,
    /// A code span or link is cut.
    Span,
    None,
}

/// A cut: the end of the part before it and the start of the part after it.
#[derive(Clone, Copy)]
struct CutPoint {
    end: usize,
    next_start: usize,
    /// The part takes less than half of the text that it has room for, even with the whitespace that is dropped.
    is_short: bool,
}

/// The search for the end of one part. Visits each character that has room in the part once.
struct CutSearch<'a> {
    layout: &'a MarkdownLayout<'a>,
    start: usize,
    is_after_short_part: bool,
    /// Units of the line that opens a block again, with its line ending.
    prefix: usize,
    /// Units so far, with the prefix.
    used: usize,
    /// Index of the first block that ends after the current position.
    block: usize,
    /// Index of the first span that ends after the current position.
    span: usize,
    line: LineStart,
    is_line_blank: bool,
    previous: char,
    /// The last character that is not whitespace.
    visible: char,
    is_half_flag: bool,
    best: Option<(CutHarm, CutPlace, CutPoint)>,
}

impl<'a> CutSearch<'a> {
    fn new(layout: &'a MarkdownLayout<'a>, start: usize, is_after_short_part: bool) -> Self {
        let prefix = layout.block_at(start).map_or(0, |block| layout.unit.length(&block.reopening) + 1);
        Self {
            layout,
            start,
            is_after_short_part,
            prefix,
            used: prefix,
            block: layout.blocks.partition_point(|block| block.end <= start),
            span: layout.spans.partition_point(|span| span.end <= start),
            line: LineStart::Indent(0),
            is_line_blank: true,
            previous: '\n',
            visible: '\n',
            is_half_flag: false,
            best: None,
        }
    }

    /// Returns the end of the text if the rest fits into the part, else the best cut.
    fn run(mut self) -> CutPoint {
        let rest = &self.layout.text[self.start..];
        for (offset, c) in rest.char_indices() {
            if self.used > self.layout.max {
                break;
            }
            let at = self.start + offset;
            if offset > 0 {
                self.enter(at);
                self.consider(at, c);
            }
            self.visit(at, c);
        }
        let end = self.layout.text.len();
        if self.used + self.suffix(end) <= self.layout.max {
            return CutPoint { end, next_start: end, is_short: false };
        }
        // There is always a cut, because fences and their lines are limited to a part of the room.
        let first = self.start + rest.chars().next().map_or(rest.len(), char::len_utf8);
        self.best.map_or(CutPoint { end: first, next_start: first, is_short: true }, |(_, _, cut)| cut)
    }

    /// Moves the current block and span on to a position.
    fn enter(&mut self, at: usize) {
        let blocks = &self.layout.blocks;
        // The characters after a fence are not the start of a line.
        if blocks.get(self.block).is_some_and(|block| block.end == at || block.body == at) {
            self.line = LineStart::Content;
        }
        while blocks.get(self.block).is_some_and(|block| block.end <= at) {
            self.block += 1;
        }
        while self.layout.spans.get(self.span).is_some_and(|span| span.end <= at) {
            self.span += 1;
        }
    }

    /// Updates the state with the character at a position.
    fn visit(&mut self, at: usize, c: char) {
        self.line = self.line.after(c, self.open_fence(at));
        self.used += self.layout.unit.length_of_char(c);
        self.is_half_flag = is_regional_indicator(c) && !self.is_half_flag;
        self.previous = c;
        if is_line_ending(c) {
            self.is_line_blank = true;
        } else if !c.is_whitespace() {
            self.is_line_blank = false;
            self.visible = c;
        }
    }

    fn current_block(&self) -> Option<&'a FencedBlock> {
        self.layout.blocks.get(self.block)
    }

    /// Returns the fence of the block that a position is in.
    fn open_fence(&self, at: usize) -> Option<CodeFence> {
        self.current_block().filter(|block| block.body <= at).map(|block| block.fence)
    }

    /// Returns the units of the line that closes a block at the end of the part, with the line ending before it.
    fn suffix(&self, end: usize) -> usize {
        self.layout.block_at(end).map_or(0, |block| block.fence.len() + 1)
    }

    /// Considers a cut in front of the character at a position.
    fn consider(&mut self, at: usize, c: char) {
        match self.current_block().filter(|block| block.open < at) {
            None => self.consider_text(at, c),
            Some(block) if block.allows_cut(at) => self.consider_code(at, c),
            Some(_) => {}
        }
    }

    fn consider_text(&mut self, at: usize, c: char) {
        if self.previous.is_whitespace() {
            return;
        }
        if !c.is_whitespace() {
            self.offer(self.place_between_characters(), at, at);
            return;
        }
        let next_start = self.layout.next_start(at);
        let endings = lines_of(&self.layout.text[at..next_start]).take(3).count() - 1;
        let place = match endings {
            0 if is_sentence_end(self.visible) => CutPlace::Sentence,
            0 => CutPlace::Space,
            1 => CutPlace::Line,
            _ => CutPlace::BlankLine,
        };
        self.offer(place, at, next_start);
    }

    fn consider_code(&mut self, at: usize, c: char) {
        if is_line_ending(c) {
            // CR and LF are one line ending, unless the part starts between them.
            if self.previous == '\r' && c == '\n' {
                return;
            }
            let next_start = at + line_ending_len(&self.layout.text[at..]);
            let place = if self.is_line_blank { CutPlace::BlankLine } else { CutPlace::Line };
            self.offer(place, at, next_start);
        } else if !is_line_ending(self.previous) {
            let is_word_start = is_space(self.previous) && !is_space(c) && !self.is_line_blank;
            let place = match is_word_start {
                true if is_sentence_end(self.visible) => CutPlace::Sentence,
                true => CutPlace::Space,
                false => self.place_between_characters(),
            };
            self.offer(place, at, at);
        }
    }

    fn place_between_characters(&self) -> CutPlace {
        if matches!(self.previous, '。' | '！' | '？') {
            CutPlace::Sentence
        } else if continues_grapheme(self.previous) {
            CutPlace::CombinedCharacter
        } else {
            CutPlace::Character
        }
    }

    /// Keeps a cut if the part then fits, and if the cut is at least as good as the best one before it.
    fn offer(&mut self, place: CutPlace, end: usize, next_start: usize) {
        let suffix = self.suffix(end);
        if self.used + suffix > self.layout.max {
            return;
        }
        let room = self.layout.max - self.prefix - suffix;
        let content = self.used - self.prefix;
        let is_short = 2 * (content + next_start - end) < room;
        let harm = if is_short && self.is_after_short_part {
            CutHarm::SecondShortPart
        } else {
            self.harm(end, next_start, 2 * content < room)
        };
        // The place matters only if the cut does no more harm than to cut a span; else the longest part is best.
        let place = if harm >= CutHarm::Span { place } else { CutPlace::Character };
        if self.best.is_none_or(|(best_harm, best_place, _)| (harm, place) >= (best_harm, best_place)) {
            self.best = Some((harm, place, CutPoint { end, next_start, is_short }));
        }
    }

    fn harm(&self, end: usize, next_start: usize, is_content_short: bool) -> CutHarm {
        let text = self.layout.text;
        let next = text[next_start..].chars().next().unwrap_or(' ');
        let is_glued = end == next_start && self.previous == ZERO_WIDTH_JOINER;
        let is_flag = end == next_start && self.is_half_flag && is_regional_indicator(next);
        let cuts_line = !text[..next_start].ends_with(is_line_ending);
        let is_empty_block = self.current_block().is_some_and(|block| self.empties(block, end, next_start));
        if self.line.is_fence(self.open_fence(end)) || (cuts_line && self.layout.is_fence_like[next_start]) {
            CutHarm::NewFence
        } else if continues_grapheme(next) || is_glued || is_flag {
            CutHarm::Grapheme
        } else if is_empty_block {
            CutHarm::EmptyBlock
        } else if is_content_short {
            CutHarm::ShortPart
        } else if self.layout.spans.get(self.span).is_some_and(|span| span.start < end) {
            CutHarm::Span
        } else {
            CutHarm::None
        }
    }

    /// Returns whether a cut leaves a block without visible content in the part before or after the cut.
    fn empties(&self, block: &FencedBlock, end: usize, next_start: usize) -> bool {
        let is_opened_here = self.start <= block.open && (block.body..=block.code_start).contains(&end);
        let has_info = block.info_start < end && end < block.info_end;
        (is_opened_here && !has_info) || (block.code_end..=block.close).contains(&next_start)
    }
}

/// Returns whether a character in front of a space ends a sentence.
fn is_sentence_end(c: char) -> bool {
    matches!(c, '.' | '!' | '?' | '。' | '！' | '？')
}

#[cfg(test)]
mod tests;
