// The conversation: its turns, the inputs that are not accepted yet, and what a person can do about both.
import { Component, createRef, type ComponentChild, type VNode } from "preact";
import type { Chat, Refusal } from "../chat";
import type { PendingInput } from "../storage";
import { Content } from "./content";
import { Countdown } from "./countdown";
import { FailureText } from "./failure";
import { TurnArticle } from "./turn";

/** Pixels from the end within which the view follows new text. */
const END_PX = 80;
/** Inputs that the agents of `--demo` answer. */
const DEMO_INPUTS = ["hello **world**", "@counter count to 20 every 500ms"];

export class Log extends Component<{ chat: Chat }> {
  private readonly scroller = createRef<HTMLDivElement>();
  private followsEnd = true;

  override componentDidMount(): void {
    this.follow();
  }

  override componentDidUpdate(): void {
    this.follow();
  }

  override render(): ComponentChild {
    const { chat } = this.props;
    const view = chat.view();
    const pending = chat.pending();
    const isEmpty = view.turns.length === 0 && pending.length === 0;
    return (
      <div
        class="log"
        role="log"
        aria-live="off"
        aria-label="Messages"
        tabIndex={0}
        ref={this.scroller}
        onScroll={() => this.onScroll()}
        onLoadCapture={() => this.follow()}
      >
        {view.isCut && <p class="hint">Older messages are not shown. They are in the log of the session.</p>}
        {isEmpty && view.state !== "missing" && <Welcome chat={chat} />}
        {view.turns.map((turn) => (
          <TurnArticle
            key={turn.runId}
            turn={turn}
            version={turn.version}
            isConnected={chat.isConnected()}
            cancel={() => chat.cancel(turn)}
            askAgain={(content) => chat.ask(content, "enqueue")}
          />
        ))}
        {pending.map((input) => (
          <PendingArticle key={input.messageId} chat={chat} input={input} refusal={chat.refusal(input.messageId)} />
        ))}
      </div>
    );
  }

  private onScroll(): void {
    const at = this.scroller.current;
    if (at !== null) this.followsEnd = at.scrollHeight - at.scrollTop - at.clientHeight < END_PX;
  }

  private follow(): void {
    const at = this.scroller.current;
    if (at !== null && this.followsEnd) at.scrollTop = at.scrollHeight;
  }
}

/** Greets in an empty conversation, with inputs to try where the demo's agents are. */
function Welcome({ chat }: { chat: Chat }): VNode {
  const isDemo = chat.view().agents.includes("counter");
  return (
    <div class="welcome">
      <h2>Talk to an agent</h2>
      <p>
        Write a message below. You can go on writing while an answer appears, stop it, or close this page: the
        conversation is kept.
      </p>
      {isDemo && (
        <div class="examples" role="group" aria-label="Examples">
          {DEMO_INPUTS.map((text) => (
            <button type="button" key={text} onClick={() => chat.ask(text, "steer")}>{text}</button>
          ))}
        </div>
      )}
    </div>
  );
}

/** An input that the node has not accepted yet. */
function PendingArticle({ chat, input, refusal }: { chat: Chat; input: PendingInput; refusal: Refusal | null }): VNode {
  return (
    <article class="turn" data-pending={input.messageId}>
      <div class="input">
        <h2 class="unseen">You</h2>
        <Content content={input.content} />
      </div>
      {refusal === null ? (
        <p class="hint">{chat.isConnected() ? "Sending…" : "Not sent yet. It is sent when the connection is back."}</p>
      ) : (
        <div class="failure">
          <FailureText failure={refusal.failure} />
          {refusal.retryAt !== null ? (
            <p class="hint">
              It is sent again by itself. <Countdown key={refusal.retryAt} until={refusal.retryAt} before="In" />
            </p>
          ) : (
            <div class="buttons">
              <button type="button" onClick={() => chat.sendAgain(input)}>Send again</button>
              <button type="button" onClick={() => chat.withdraw(input)}>Delete</button>
            </div>
          )}
        </div>
      )}
    </article>
  );
}
