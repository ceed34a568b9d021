// Reads records and writes one, through the registry whose address is the first argument, and looks up the schema that is
// the second. Records stand on stdin as hex, one a line; prints one JSON object.
const { SchemaRegistry, SchemaType } = require("@kafkajs/confluent-schema-registry");

async function main() {
  const registry = new SchemaRegistry({ host: process.argv[2] });
  const lines = require("fs").readFileSync(0, "utf8").trim().split("\n");
  const read = [];
  for (const line of lines) read.push(await registry.decode(Buffer.from(line, "hex")));
  const id = await registry.getLatestSchemaId("OrderPlaced");
  const written = await registry.encode(id, { orderId: "o-2", totalCents: 5, note: null });
  const found = await registry.getRegistryIdBySchema("OrderPlaced", { type: SchemaType.AVRO, schema: process.argv[3] });
  console.log(JSON.stringify({ read, id, found, written: written.toString("hex") }));
}

main().catch((error) => {
  console.error(error.message);
  process.exit(1);
});
