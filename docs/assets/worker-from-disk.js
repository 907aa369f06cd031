// Search runs in a worker, which browsers refuse to a page opened from disk. There the worker's script
// runs in a hidden frame instead: the same messages, on the page's own thread.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      document.body.append(this.frame);
      const inner = this.frame.contentWindow;
      const script = inner.document.createElement("script");
      this.ready = new Promise((done) => (script.onload = done));
      inner.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      inner.importScripts = () => Promise.resolve(); // languages other than English: we have none
      script.src = url;
      inner.document.body.append(script);
    }
    postMessage(data) {
      const inner = this.frame.contentWindow;
      this.ready.then(() => inner.dispatchEvent(new inner.MessageEvent("message", { data })));
    }
    terminate() {
      this.frame.remove();
    }
  };
}
