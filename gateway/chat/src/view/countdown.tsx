// The seconds until a moment. Screen readers do not hear it: they would read each second.
import type { VNode } from "preact";
import { useEffect, useState } from "preact/hooks";

export function Countdown({ until, before }: { until: number; before: string }): VNode | null {
  const left = useSecondsUntil(until);
  return left > 0 ? <span class="countdown" aria-hidden="true">{before} {left} s</span> : null;
}

/** Returns the seconds until a moment, rounded up; renders again each second until then. */
export function useSecondsUntil(until: number): number {
  const [now, setNow] = useState(Date.now());
  const left = Math.max(0, Math.ceil((until - now) / 1000));
  useEffect(() => {
    if (left === 0) return undefined;
    const timer = setInterval(() => setNow(Date.now()), 1000);
    return () => clearInterval(timer);
  }, [until, left === 0]);
  return left;
}
