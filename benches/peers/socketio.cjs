// A Socket.IO server that passes on what is said to a room: the peer of `turnway-bench compare`.
"use strict";
const { createServer } = require("node:http");
const { Server } = require("socket.io");

async function adapter() {
  if (!process.env.REDIS) return undefined;
  const { createAdapter } = require("@socket.io/redis-adapter");
  const { createClient } = require("redis");
  const publisher = createClient({ url: process.env.REDIS });
  const subscriber = publisher.duplicate();
  await Promise.all([publisher.connect(), subscriber.connect()]);
  return createAdapter(publisher, subscriber);
}

async function main() {
  const options = { transports: ["websocket"], perMessageDeflate: false, serveClient: false };
  const between = await adapter();
  if (between) options.adapter = between;
  if (process.env.RECOVERS) options.connectionStateRecovery = { maxDisconnectionDuration: 120000 };
  const http = createServer();
  const io = new Server(http, options);
  io.on("connection", (socket) => {
    socket.on("join", async (room, done) => {
      await socket.join(room);
      done();
    });
    socket.on("say", (room, text) => io.to(room).emit("m", text));
  });
  http.listen(Number(process.env.PORT), "127.0.0.1");
}

main();
