// The list of conversations. On a narrow screen it covers the conversation and closes after a choice.
import type { VNode } from "preact";
import { useEffect } from "preact/hooks";
import type { Chat } from "../chat";
import type { Conversation } from "../storage";
import { focusComposer, type OpenDialog } from "./app";

interface Props {
  chat: Chat;
  isOpen: boolean;
  close: () => void;
  openDialog: (dialog: OpenDialog) => void;
}

export function Sidebar({ chat, isOpen, close, openDialog }: Props): VNode {
  // On a wide screen the list is always there, and never "open".
  useEffect(() => {
    if (isOpen) document.getElementById("new-conversation")?.focus();
  }, [isOpen]);
  const leave = (action: () => void) => {
    action();
    close();
    // A conversation that is rendered anew takes the focus by itself.
    focusComposer();
  };
  const dismiss = () => {
    close();
    document.getElementById("list-button")?.focus();
  };
  return (
    <nav
      id="conversations"
      class={isOpen ? "open" : ""}
      aria-label="Conversations"
      onKeyDown={(event) => isOpen && event.key === "Escape" && dismiss()}
    >
      <button type="button" class="list-close" onClick={dismiss}>Close the list</button>
      <button type="button" id="new-conversation" class="primary" onClick={() => leave(() => chat.create())}>
        New conversation
      </button>
      <ul>
        {chat.conversations.map((conversation) => (
          <Entry
            key={conversation.id}
            conversation={conversation}
            isCurrent={conversation.id === chat.currentId}
            select={() => leave(() => chat.select(conversation.id))}
            openDialog={openDialog}
          />
        ))}
      </ul>
      {chat.hasKey && (
        <button type="button" class="quiet" onClick={() => chat.signOut()}>
          Sign out of this browser
        </button>
      )}
    </nav>
  );
}

interface EntryProps {
  conversation: Conversation;
  isCurrent: boolean;
  select: () => void;
  openDialog: (dialog: OpenDialog) => void;
}

function Entry({ conversation, isCurrent, select, openDialog }: EntryProps): VNode {
  const { title } = conversation;
  return (
    <li>
      <button type="button" class="entry" aria-current={isCurrent ? "page" : undefined} onClick={select}>
        {title}
      </button>
      <button
        type="button"
        class="quiet small"
        aria-label={`Rename: ${title}`}
        title="Rename"
        onClick={() => openDialog({ name: "rename", conversation })}
      >
        ✎
      </button>
      <button
        type="button"
        class="quiet small"
        aria-label={`Delete from the list: ${title}`}
        title="Delete from the list"
        onClick={() => openDialog({ name: "delete", conversation })}
      >
        ✕
      </button>
    </li>
  );
}
