/* Search when the site is opened from disk. Browsers start no Worker from a file:// page, so the script of the worker
   runs in a hidden frame instead, and messages are handed over as events. */
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      this.waiting = [];
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.documentElement.appendChild(frame);
      this.inside = frame.contentWindow;
      this.inside.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      this.inside.importScripts = (...urls) => Promise.all(urls.map((each) => this.load(each)));
      this.load(url).then(() => {
        this.waiting.splice(0).forEach((data) => this.hand(data));
        this.waiting = null;
      });
    }

    load(url) {
      return new Promise((resolve, reject) => {
        const script = this.inside.document.createElement("script");
        script.onload = resolve;
        script.onerror = reject;
        script.src = url;
        this.inside.document.body.appendChild(script);
      });
    }

    hand(data) {
      this.inside.dispatchEvent(new MessageEvent("message", { data }));
    }

    postMessage(data) {
      this.waiting ? this.waiting.push(data) : this.hand(data);
    }

    terminate() {
      this.inside.frameElement.remove();
    }
  };
}
