// Text that the user has not sent yet.
import { useState } from "react";
import { tabStore } from "../store/storage";

/** A text of this tab that survives a reload; null if there is none. It is read in the render that changes its name, so that
 * what is typed next is not added to the text of another name. */
export function useDraft(name: string): [string | null, (text: string | null) => void] {
  const [draft, setDraft] = useState(() => ({ name, text: tabStore.get(name) }));
  return [
    draft.name === name ? draft.text : tabStore.get(name),
    (text) => {
      tabStore.set(name, text);
      setDraft({ name, text });
    },
  ];
}
